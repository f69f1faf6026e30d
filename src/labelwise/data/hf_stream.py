"""Datasets in the Hugging Face `datasets` format: from the hub, from a local folder, or saved with `save_to_disk`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labelwise.data.readers.manifest import IMAGE_COLUMNS, LABEL_COLUMNS, UNKNOWN_COLUMNS
from labelwise.data.table import canonical_split
from labelwise.data.tar_shards import RawSample, Reader, as_list
from labelwise.errors import LabelwiseError, missing_extra, unknown_name

_KEY_COLUMNS = ("__key__", "id", "image_id", "file_name")
_LOCAL_SHARDS = 64  # of a dataset on disk: as many loader workers can share it


class HuggingFaceStream:
    def __init__(self, name: str, split: str, image_column: str | None, label_column: str | None) -> None:
        self.name = name
        self._rows: Any = _open(name, split)  # a datasets.IterableDataset
        features = self._rows.features
        if features is None:
            raise LabelwiseError(f"hf:{name} does not say which columns it has")
        self._image = _column(name, "image", image_column, IMAGE_COLUMNS, features)
        self._label = _column(name, "label", label_column, LABEL_COLUMNS, features)
        self._unknown = next((column for column in UNKNOWN_COLUMNS if column in features), None)
        self.labels = _class_names(features[self._label])
        if type(features[self._image]).__name__ == "Image":
            # Bytes, not pictures: our own decoder turns and converts them the same way for every source.
            self._rows = self._rows.cast_column(self._image, type(features[self._image])(decode=False))

    def samples(self, reader: Reader, shuffle: random.Random | None) -> Iterator[RawSample]:
        """The reader's part. `datasets` itself splits over the workers of a DataLoader, whole shards each."""
        from datasets.distributed import split_dataset_by_node

        rows = self._rows
        if shuffle is not None:
            rows = rows.shuffle(seed=shuffle.randrange(2**31), buffer_size=1)  # the order of the shards
        rows = split_dataset_by_node(rows, reader.rank, reader.world_size)
        for number, row in enumerate(rows):
            yield self._raw_sample(row, f"{reader.index}-{number}")

    def _raw_sample(self, row: dict[str, Any], place: str) -> RawSample:
        image: Any = row[self._image]
        path: str | None = None
        if isinstance(image, dict):
            image, path = image.get("bytes"), image.get("path")
        elif isinstance(image, str):
            image, path = None, image
        name = next((row[column] for column in _KEY_COLUMNS if row.get(column) is not None), path or place)
        return RawSample(
            f"{self.name}/{name}",
            image if image is not None else Path(str(path)).read_bytes(),
            as_list(row[self._label]),
            as_list(row[self._unknown]) if self._unknown else [],
        )


def _open(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "streaming") from None
    if (Path(name) / "dataset_dict.json").is_file() or (Path(name) / "state.json").is_file():
        saved = datasets.load_from_disk(name)
        if isinstance(saved, datasets.DatasetDict):
            saved = _choose(name, split, saved, list(saved))
        return saved.to_iterable_dataset(num_shards=min(_LOCAL_SHARDS, len(saved)))
    try:
        splits = datasets.load_dataset(name, streaming=True)
    except Exception as error:  # the hub, the network and the builders raise their own classes
        raise LabelwiseError(f"cannot open hf:{name} ({' '.join(str(error).split())})") from error
    return _choose(name, split, splits, list(splits))


def _choose(name: str, split: str, splits: Any, names: list[str]) -> Any:
    """The split, whatever it is called there: val finds `validation`."""
    for there in names:
        if canonical_split(there) == canonical_split(split):
            return splits[there]
    raise unknown_name(f"split of hf:{name}", split, names)


def _column(name: str, what: str, given: str | None, usual: tuple[str, ...], features: Any) -> str:
    found = given or next((column for column in usual if column in features), None)
    if found is None or found not in features:
        raise LabelwiseError(f"hf:{name} has no {what} column: it has {', '.join(features)}; add {what}_column=")
    return found


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, or of a list of them; None for plain strings."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return tuple(names) if names else None
