"""Predictions in files: JSON, JSON Lines and CSV, written line by line.

A killed process leaves complete lines and at most one that is cut off; `resume` removes that one and continues.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from labelwise.core.errors import LabelwiseError
from labelwise.data.manifests import is_plain_name, relative_path
from labelwise.data.readers.records import PREDICTION_COLUMNS

if TYPE_CHECKING:
    from labelwise.runtime.prediction import Prediction


class Writer(Protocol):
    """Where predictions go. `wants` is asked once per image, in order, before it is predicted."""

    def wants(self, image: str) -> bool: ...
    def write(self, prediction: Prediction, labels: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class JsonWriter:
    """A list with one line per image, for `json.load` and for `grep` alike. `.jsonl`: only the lines."""

    def __init__(self, path: Path, labels: Iterable[str], *, resume: bool = False) -> None:
        lines = path.suffix.lower() in (".jsonl", ".ndjson")
        self._start, self._between, self._end = ("", "\n", "\n") if lines else ("[\n", ",\n", "\n]\n")
        self._empty = True
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = 0
        self._there: Counter[str] = Counter()
        if not _may_be_ours(path, self._start + '{"image": '):
            raise _foreign(path)
        if resume and path.exists():
            data = path.read_bytes()
            for end, entry in _json_lines(data):
                if not isinstance(entry.get("image"), str):
                    raise _foreign(path)
                _check_labels(path, entry.get("all_scores"), set(labels))
                self._there[entry["image"]] += 1
                kept = end
            self._empty = kept == 0
        # A name that is not UTF-8 holds surrogates, which JSON writes as \udcXX: just what backslashreplace gives.
        self._file = _continued(path, kept, "backslashreplace")

    def wants(self, image: str) -> bool:
        return not _taken(self._there, image)

    def write(self, prediction: Prediction, labels: dict[str, float]) -> None:
        content = prediction.to_dict(all_scores=True)
        if prediction.error is None:
            content["labels"] = labels
        self._file.write((self._start if self._empty else self._between) + json.dumps(content, ensure_ascii=False))
        self._file.flush()
        self._empty = False

    def close(self) -> None:
        """Also after Ctrl-C: what was done is a complete file."""
        self._file.write((self._start.strip() + self._end.strip() + "\n") if self._empty else self._end)
        self._file.close()


class CsvWriter:
    """`image,labels,scores`. Skipped images get no row: one without labels would say that no label applies."""

    def __init__(self, path: Path, labels: Iterable[str], *, resume: bool = False) -> None:
        self._path, self._folder = path, path.parent
        names = set(labels)
        # `a|b` is what people expect to see; as soon as it could be misread, names are written as JSON lists.
        self._plain = all(map(is_plain_name, names))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._there: Counter[str] = Counter()
        kept = 0
        if path.suffix.lower() == ".tsv":
            raise LabelwiseError(
                f"predictions are separated by commas, not by tabs as in {str(path)!r}; name a .csv file"
            )
        if not resume and not _may_be_ours(path, ",".join(PREDICTION_COLUMNS) + "\n"):
            raise _foreign(path)
        if not resume and path.is_file() and self._was_edited(complete_rows(path.read_bytes())[1]):
            raise LabelwiseError(
                f"{str(path)!r} holds labels that were added or removed by hand, and is not replaced; name another "
                "file, or continue this one",
                options={"resume": True},
            )
        if resume and path.exists():
            kept, rows = complete_rows(path.read_bytes())
            if rows and tuple(rows[0]) != PREDICTION_COLUMNS:
                raise _foreign(path)
            for row in rows[1:]:
                if len(row) != len(PREDICTION_COLUMNS):
                    raise _foreign(path)
                _check_labels(path, self._names(row[1]), names, some=True)
                self._there[row[0]] += 1
        self._file = _continued(path, kept, "surrogateescape")
        self._table = csv.writer(self._file, lineterminator="\n")
        if not kept:
            self._table.writerow(PREDICTION_COLUMNS)

    def _was_edited(self, rows: list[list[str]]) -> bool:
        """Whether a row has other labels than scores: whoever corrects the labels leaves the scores as they are."""
        for row in filter(None, rows[1:]):
            if len(row) != len(PREDICTION_COLUMNS):
                return True
            _, names, scores = row
            try:
                found = json.loads(names) if names.startswith("[") else names and names.split("|")
            except ValueError:
                return True
            if len(found) != len(scores and scores.split("|")):
                return True
        return False

    def _names(self, cell: str) -> list[str]:
        if self._plain:
            return cell.split("|") if cell else []
        try:
            names: list[str] = json.loads(cell)
        except ValueError:
            raise _foreign(self._path) from None
        return names

    def _relative(self, image: str) -> str:
        """Paths are relative to the file's folder, as in every manifest."""
        return image if os.path.isabs(image) else relative_path(image, self._folder)

    def wants(self, image: str) -> bool:
        return not _taken(self._there, self._relative(image))

    def write(self, prediction: Prediction, labels: dict[str, float]) -> None:
        if prediction.error is not None:
            return
        names, scores = list(labels), [f"{score:.4f}" for score in labels.values()]
        cell = "|".join(names) if self._plain else json.dumps(names)
        self._table.writerow([self._relative(str(prediction.image)), cell, "|".join(scores)])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _may_be_ours(path: Path, opening: str) -> bool:
    """Whether a file begins as ours do, or has nothing to lose: it is empty, a pipe such as /dev/stdout, or missing."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        start = file.read(len(opening))
    return opening.encode().startswith(start) or start.strip() in (b"", b"[]")


def _continued(path: Path, kept: int, errors: str) -> IO[str]:
    """The file, open for writing behind its first `kept` bytes."""
    if kept:
        os.truncate(path, kept)
    return path.open("a" if kept else "w", encoding="utf-8", errors=errors, newline="")


def _json_lines(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each complete object, and where it ends. The first line that is none is where the writing was interrupted."""
    end = 0
    for line in data.splitlines(keepends=True):
        start, end = end, end + len(line)
        text = line.strip().removesuffix(b",")
        if text in (b"[", b""):
            continue
        try:
            entry = json.loads(text)
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        yield start + line.index(text) + len(text), entry


def complete_rows(data: bytes) -> tuple[int, list[list[str]]]:
    r"""The rows of a CSV that were written to their end, and where the last of them ends; cells may hold line ends.

    >>> complete_rows(b'image,labels\n"a\nb.jpg",cat\nc.jpg,do')
    (27, [['image', 'labels'], ['a\nb.jpg', 'cat']])
    """
    complete = end = quotes = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        quotes += line.count(b'"')
        if line.endswith(b"\n") and quotes % 2 == 0:  # else the line end is inside a cell
            complete = end
    text = data[:complete].decode("utf-8", "surrogateescape")
    return complete, list(csv.reader(io.StringIO(text, newline="")))


def _taken(there: Counter[str], name: str) -> bool:
    """An image that is named twice was written twice: each entry stands for one of them."""
    if there[name] <= 0:
        return False
    there[name] -= 1
    return True


def _check_labels(path: Path, found: Any, labels: set[str], *, some: bool = False) -> None:
    if found is None:  # an image that was skipped
        return
    if not (set(found) <= labels if some else set(found) == labels):
        raise LabelwiseError(
            f"{str(path)!r} was written by a model with other labels; name another file, or do not resume it"
        )


def _foreign(path: Path) -> LabelwiseError:
    return LabelwiseError(f"{str(path)!r} was not written by labelwise predict and is not replaced; name another file")
