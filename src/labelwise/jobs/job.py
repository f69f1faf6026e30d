"""The folder of a job: `_job.json` describes the job, `part-000012.parquet` is a finished part of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, sha256
from labelwise.data.locations import JOB_FILE as ABOUT
from labelwise.jobs.parts import Part
from labelwise.runtime.sessions import EngineName

FORMAT = 1  # raised when jobs of older versions cannot be resumed
_PART = re.compile(r"part-(\d{6,})\.parquet")
_END = b"PAR1"  # of every Parquet file that is complete


class JobSettings(Config):
    """Everything besides the model and the images that decides what is written.

    Attributes:
        top: Write the best labels, this many, whatever their thresholds.
        threshold: One threshold for all labels.
        labels: Other labels than the model's own.
        known: Labels that are known to be on all images, or on none.
        engine: What runs the model.
        batch_size: Images at a time.
        all_scores: Also write the scores of all labels.
    """

    top: int | None = None
    threshold: float | None = None
    labels: tuple[str, ...] | None = None
    known: dict[str, bool] | None = None
    engine: EngineName = "auto"
    batch_size: int = Field(default=32, ge=1)
    all_scores: bool = False


@dataclass
class JobSummary:
    """What a run did, and what was done before."""

    parts: int
    already_there: int = 0
    images: int = 0  # of this run
    errors: int = 0  # images of this run that cannot be decoded
    failed: dict[int, str] = field(default_factory=dict)  # parts that could not be read, and why


class JobFolder:
    """A local folder or any address that fsspec knows. Its files are complete or absent."""

    def __init__(self, place: str) -> None:
        import fsspec

        self.place = place
        try:
            self._system, self._root = fsspec.core.url_to_fs(place)
        except (ImportError, ValueError) as error:
            raise LabelwiseError(f"cannot write to {place!r}: {error}") from None
        self._is_local = "://" not in place or place.startswith("file://")

    def engine_of_earlier_run(self) -> EngineName | None:
        """What "auto" chose then: all parts of a job are computed by the same engine."""
        about = self._read()
        return None if about is None else about["settings"].get("engine")

    def start(self, model: str, parts: Sequence[Part], labels: Sequence[str], settings: JobSettings) -> None:
        """Write the description of the job, or check that the folder holds this very job."""
        about = {
            "format": FORMAT,
            "model": model,
            "source": {"parts": len(parts), "sha256": sha256(*(f"{part!r}\n" for part in parts)).hexdigest()},
            # Jobs of older versions, which had no known labels, go on.
            "settings": settings.model_dump(mode="json", exclude=None if settings.known else {"known"}),
            "labels": list(labels),
        }
        there = self._read()
        if there is None:
            if self._list():
                raise LabelwiseError(f"{self.place!r} is not empty and is not a job; choose another folder or empty it")
            self._write(ABOUT, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
        elif there != about:
            raise LabelwiseError(
                f"{self.place!r} holds another job: {_difference(there, about)}; choose another folder for this one"
            )

    def finished(self) -> dict[int, float]:
        """The parts that are there, and when they were written (0: not known). One that was cut short is not there."""
        found = {int(match[1]): about for name, about in self._list().items() if (match := _PART.fullmatch(name))}
        paths = [about["name"] for about in found.values()]
        ends = self._system.cat_ranges(paths, [-len(_END)] * len(paths), [None] * len(paths), on_error="return")
        return {number: _time(about) for (number, about), end in zip(found.items(), ends, strict=True) if end == _END}

    def write_part(self, number: int, content: bytes) -> None:
        self._write(f"part-{number:06d}.parquet", content)

    def _list(self) -> dict[str, dict[str, Any]]:
        """What fsspec knows about each file, by its name."""
        with suppress(FileNotFoundError):
            self._system.invalidate_cache()
            named = {about["name"].rstrip("/").rpartition("/")[2]: about for about in self._system.ls(self._root, True)}
            return {name: about for name, about in named.items() if not name.startswith(".")}
        return {}

    def _read(self) -> dict[str, Any] | None:
        try:
            about = json.loads(self._system.cat_file(f"{self._root}/{ABOUT}"))
        except FileNotFoundError:
            return None
        except ValueError:
            about = None
        if not isinstance(about, dict) or not isinstance(about.get("settings"), dict):
            raise LabelwiseError(f"{self.place!r} has a damaged {ABOUT}; choose another folder or empty it")
        return about

    def _write(self, name: str, content: bytes) -> None:
        if self._is_local:
            atomic_write(Path(self._root) / name, content)
        else:  # an object in a bucket appears only when it is complete
            self._system.pipe_file(f"{self._root}/{name}", content)


def _time(about: Mapping[str, Any]) -> float:
    """When a file was written: file systems have their own names for that."""
    when = next((about[name] for name in ("mtime", "LastModified", "created") if about.get(name)), 0.0)
    return float(when.timestamp() if isinstance(when, datetime) else when)


def _difference(there: dict[str, Any], now: dict[str, Any]) -> str:
    """
    >>> _difference({"settings": {"top": 1}}, {"settings": {"top": 5}})
    'its top is 1, now it is 5'
    """
    for what, words in (
        ("format", "another version of labelwise wrote it"),
        ("model", "it used another model"),
    ):
        if there.get(what) != now.get(what):
            return words
    before, after = there.get("settings", {}), now.get("settings", {})
    for name in after:
        if before.get(name) != after[name]:
            return f"its {name.replace('_', '-')} is {before.get(name)}, now it is {after[name]}"
    if there.get("source") != now.get("source"):
        return "its images differ, or are split into other parts"
    return "its labels differ"
