"""Open a stream: find its shards, their splits and numbers of samples, and the label names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from labelwise.core.config import Config
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, counted, tell
from labelwise.core.progress import progress_of
from labelwise.data.decode import file_kind
from labelwise.data.locations import files_of, read_file
from labelwise.data.readers.base import Names, parse_options
from labelwise.data.shard_kinds import (
    RowsShard,
    TarShard,
    dataset_files,
    dataset_shards,
    declared_labels,
    list_shards,
    parquet_shards,
)
from labelwise.data.shards import Shard
from labelwise.data.side_labels import SideLabels
from labelwise.data.stream_table import StreamTable
from labelwise.data.table import SPLIT_ALIASES, SPLITS, VALUES, canonical_split

_SPLIT = re.compile(rf"(?:^|[/_.-])({'|'.join((*SPLITS, *SPLIT_ALIASES))})(?=[/_.0-9-])", re.IGNORECASE)


class StreamOptions(Config):
    """Options of a stream.

    Args:
        labels: The label names. Default: `labels.txt` next to the shards, what a Hugging Face dataset declares, or the
            names in `labels_from`.
        labels_from: A Parquet file with the labels of the samples, by their keys.
        key_column: Its column of keys. Default: found by its name.
        image_column: Of Parquet files and Hugging Face datasets. Default: found by its name.
        label_column: As `image_column`; also of `labels_from`.
        unlisted: Labels that a sample does not name are absent, or unknown.
        shuffle: Samples that are shuffled at a time, after the shards were shuffled as a whole.
        piece: Local, unzipped shards and lists are shuffled in pieces of so many samples instead.
        lanes: Parts of the shards that are read side by side: with shards at an address, the number of machines, so
            that each machine fetches only its share.
        samples: How many samples each tar shard has; the last one of a split is counted. Default: as `index.json` next
            to the shards says, else they are counted once.
        damaged: Shards that cannot be read are an error, or are left out and counted ("skip").
        cache_gb: Disk space for copies of shards that cannot be read where they are: at an address, zipped, Parquet.
    """

    labels: Names | None = None
    labels_from: str | None = None
    key_column: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    unlisted: Literal["absent", "unknown"] = "absent"
    shuffle: int = Field(default=20_000, ge=1)
    piece: int = Field(default=100, ge=1)
    lanes: int = Field(default=1, ge=1)
    samples: int | None = Field(default=None, ge=1)
    damaged: Literal["error", "skip"] = "error"
    cache_gb: float = Field(default=50.0, gt=0)


def open_stream(
    source: str, format: str | None, options: dict[str, Any], labels: Sequence[str] | None = None
) -> StreamTable:
    """The samples of a stream as a table.

    Args:
        source: A folder, a pattern (`*.tar`, `name-{000..099}.tar`), a Parquet file, a list of paths (`*.txt`), an
            address, or the name of a Hugging Face dataset.
        format: `hf` for a Hugging Face dataset.
        options: See `StreamOptions`.
        labels: Fixes the columns: a subset or another order of the labels.
    """
    chosen = parse_options(StreamOptions, options, f"stream {source}")
    shards, declared = _hugging_face(source, chosen) if format == "hf" else _files(source, chosen)
    shards = _counted(shards, chosen)
    if not shards:
        raise LabelwiseError(f"{source} holds no samples; give shards (*.tar, *.parquet), a list (*.txt) or hf:name")
    side = SideLabels(chosen.labels_from, chosen.key_column, chosen.label_column) if chosen.labels_from else None
    names = chosen.labels or declared or _listed_labels(shards[0].file) or labels
    if names is None:
        raise LabelwiseError(
            f"{source} does not say which labels there are; add labels=, or put labels.txt next to the shards"
        )
    table = StreamTable.of(
        shards,
        names,
        source,
        unlisted=VALUES[chosen.unlisted],
        side=side,
        shuffle=chosen.shuffle,
        piece=chosen.piece,
        lanes=chosen.lanes,
        cache_bytes=int(chosen.cache_gb * 1e9),
    )
    return table if labels is None or tuple(labels) == table.labels else table.with_labels(labels)


def split_of(file: str) -> str:
    """The split that the name of a file or of its folder begins with or contains as a word.

    >>> split_of("shards/train-000001.tar"), split_of("validation/0.tar"), split_of("a/photos-12.tar")
    ('train', 'val', '')
    """
    found = _SPLIT.findall("/".join(file.split("/")[-2:]))
    return canonical_split(found[-1]) if found else ""


def _files(source: str, options: StreamOptions) -> tuple[list[Shard], tuple[str, ...] | None]:
    def shards(file: str) -> Sequence[Shard]:
        kind = file_kind(file)
        if kind == "shard":
            return [TarShard(file, split=split_of(file))]
        if kind == "parquet":
            return parquet_shards(file, split_of(file), options.image_column, options.label_column)
        if file.endswith(".txt"):
            return list_shards(file, split_of(file))
        raise LabelwiseError(f"{file} is neither a shard (*.tar), nor Parquet, nor a list of paths (*.txt)")

    found = list(chain.from_iterable(map(shards, files_of(source))))
    first = next((shard for shard in found if isinstance(shard, RowsShard)), None)
    return found, declared_labels(first) if first else None


def _hugging_face(name: str, options: StreamOptions) -> tuple[list[Shard], tuple[str, ...] | None]:
    """A dataset in Parquet files is read from these; others through `datasets`."""
    if files := dataset_files(name):
        columns = (options.image_column, options.label_column)
        found: list[RowsShard] = [
            shard
            for split, paths in files.items()
            for path in paths
            for shard in parquet_shards(path, canonical_split(split), *columns)
        ]
        return [*found], next((declared_labels(shard) for shard in found), None)
    return dataset_shards(name, options.image_column, options.label_column)


def _listed_labels(shard: str) -> tuple[str, ...] | None:
    """The lines of `labels.txt` next to the shards, if it exists."""
    content = _beside(shard, "labels.txt")
    if content is None:
        return None
    return tuple(line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip())


def _beside(shard: str, name: str) -> bytes | None:
    found = read_file(f"{os.path.dirname(shard)}/{name}")
    return None if found.problem else found.data


# ---- numbers of samples


def _counted(shards: Sequence[Shard], options: StreamOptions) -> list[Shard]:
    """The shards with their numbers of samples; those without any, and damaged ones on request, are left out."""
    stated = _stated_counts(shards, options.samples)
    known = [replace(shard, count=stated.get(shard.file, shard.count)) for shard in shards]
    unknown = [number for number, shard in enumerate(known) if shard.count < 0]
    damaged: list[LabelwiseError] = []

    def count(number: int) -> int:
        try:
            return len(known[number].open(int(options.cache_gb * 1e9)))
        except LabelwiseError as error:
            if options.damaged == "error":
                raise LabelwiseError(
                    f"{error.message}; copy it again, or leave such shards out: damaged=skip"
                ) from None
            damaged.append(error)
            return 0

    with (
        ThreadPoolExecutor(thread_count()) as pool,
        progress_of("Counting samples", len(unknown), len(unknown) > 9) as advance,
    ):
        for number, samples in zip(unknown, pool.map(count, unknown), strict=True):
            known[number] = replace(known[number], count=samples)
            advance(1)
    if damaged:
        tell(f"{counted(len(damaged), 'shard is', 'shards are')} damaged and left out, the first: {damaged[0].message}")
    return [shard for shard in known if shard.count]


def _stated_counts(shards: Sequence[Shard], samples: int | None) -> dict[str, int]:
    """What `index.json` in the webdataset form says, or the `samples` of every shard but the last one of its split."""
    tars = [shard for shard in shards if isinstance(shard, TarShard)]
    if samples is not None:
        last = {shard.split: shard.file for shard in tars}
        return {shard.file: samples for shard in tars if shard.file != last[shard.split]}
    counts: dict[str, int] = {}
    for folder in dict.fromkeys(os.path.dirname(shard.file) for shard in tars):
        content = _beside(f"{folder}/shard", "index.json")
        try:
            entries = json.loads(content)["shardlist"] if content else []
            counts |= {f"{folder}/{entry['url']}": int(entry["nsamples"]) for entry in entries}
        except (ValueError, KeyError, TypeError):
            continue  # another program's file of this name
    return counts
