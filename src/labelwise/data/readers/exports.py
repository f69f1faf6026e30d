"""JSON that labelling tools write, as flat rows: Label Studio's tasks, fiftyone's samples and labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labelwise.core.errors import LabelwiseError, counted
from labelwise.data.images import is_image
from labelwise.data.table import SPLITS, canonical_split

Rows = list[dict[str, Any]]
_FIRST_KEYS = ("samples", "classes", "labels")  # of the objects that fiftyone writes; COCO's begin with others
_PEEKED = 4096


def is_export(path: Path) -> bool:
    """Whether a JSON file is a list of objects, labels by image, or what fiftyone writes. A COCO file is not."""
    if not path.is_file() or path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        start = file.read(_PEEKED).removeprefix(b"\xef\xbb\xbf").split()
    text = b"".join(start)
    first = re.match(rb'\{"([^"]+)":', text)
    return text.startswith(b"[") or (first is not None and _is_first_key(first[1].decode("utf-8", "replace")))


def _is_first_key(key: str) -> bool:
    return key in _FIRST_KEYS or is_image(key)


def rows_of_export(content: Any, where: str) -> tuple[Rows, list[str]]:
    """One flat object per image or annotation, and what is worth knowing."""
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        return [_fiftyone_sample(entry) for entry in _objects(content["samples"], where)], []
    if isinstance(content, dict) and isinstance(content.get("labels"), dict):
        return list(_fiftyone_labels(content, where)), []
    if isinstance(content, dict) and content and all(map(is_image, content)):  # {"a.jpg": ["cat", "dog"]}
        whole = (
            value if isinstance(value, dict) and "labels" in value else {"labels": value} for value in content.values()
        )
        return [{"image": image, **value} for image, value in zip(content, whole, strict=True)], []
    if not isinstance(content, list):
        raise LabelwiseError(f'{where}: expected a list of objects like {{"image": ..., "labels": [...]}}')
    entries = _objects(content, where)
    if not any(_is_task(entry) for entry in entries):
        return entries, []
    return _label_studio_rows(entries)


def _objects(content: list[Any], where: str) -> Rows:
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict):
            raise LabelwiseError(f'{where} row {number}: expected an object like {{"image": ..., "labels": [...]}}')
    return content


# ---- Label Studio (its CSV and JSON-MIN are tables already)


def _is_task(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("data"), dict) and isinstance(entry.get("annotations"), list)


def _label_studio_rows(tasks: Rows) -> tuple[Rows, list[str]]:
    """A row per annotation; two people may have annotated an image differently, which is told like any repeated row."""
    rows: Rows = []
    untouched = 0
    names: Counter[str] = Counter()
    for task in tasks:
        finished = [one for one in task.get("annotations", []) if not one.get("was_cancelled")]
        untouched += not finished
        for annotation in finished:
            # Texts, ratings and numbers are no labels.
            results = [one for one in annotation.get("result", []) if _has_labels(one.get("value"))]
            names.update(str(one.get("from_name")) for one in results)
            rows.append({**task["data"], "labels": [one["value"] for one in results]})
    notes = []
    if untouched:
        notes.append(
            f"{counted(untouched, 'task', 'tasks')} without an annotation {'is' if untouched == 1 else 'are'} left out"
        )
    if len(names) > 1:
        notes.append(f"the labels of {', '.join(names)} are joined")
    return rows, notes


def _has_labels(value: Any) -> bool:
    return isinstance(value, dict) and any(key == "choices" or key.endswith("labels") for key in value)


# ---- fiftyone


def _fiftyone_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's tags are its split or none of our business; its labels are objects with a class."""
    row = {key: value for key, value in sample.items() if key != "tags"}
    tags = [tag for tag in sample.get("tags") or [] if isinstance(tag, str)]
    split = next((tag for tag in tags if canonical_split(tag) in SPLITS), None)
    return row if split is None else {**row, "split": split}


def _fiftyone_labels(content: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """`labels.json`: image names without ending, beside a folder `data`, with names or numbers of classes."""
    classes = content.get("classes") or []

    def name(value: Any) -> Any:
        if isinstance(value, dict):
            value = value.get("label")
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if not 0 <= value < len(classes):
            raise LabelwiseError(f"{where}: there is no class {value}; {len(classes)} are listed")
        return classes[value]

    for image, labels in content["labels"].items():
        several = labels if isinstance(labels, list) else [labels]
        yield {"image": f"data/{image}", "labels": [name(label) for label in several]}
