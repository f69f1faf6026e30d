"""Predictions in files: JSON, JSON Lines and CSV, written line by line, and sidecars, one file per image.

A killed process leaves complete lines and at most one that is cut off; `resume` removes that one and continues.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol
from xml.sax.saxutils import escape

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write
from labelwise.data.manifests import relative_path
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
        if resume and path.exists():
            data = path.read_bytes()
            for end, entry in _json_lines(data):
                if not isinstance(entry.get("image"), str):
                    raise _foreign(path)
                _check_labels(path, entry.get("all_scores"), set(labels))
                self._there[entry["image"]] += 1
                kept = end
            opening = (self._start + '{"image": ').encode()
            if not kept and data.strip() != b"[]" and data[: len(opening)] != opening[: len(data)]:
                raise _foreign(path)
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
        self._plain = not any("|" in name or name.startswith("[") for name in names)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._there: Counter[str] = Counter()
        kept = 0
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
    return LabelwiseError(
        f"{str(path)!r} was not written by labelwise; name another file, or replace it without resuming"
    )


SidecarKind = Literal["json", "txt", "xmp"]
_XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="labelwise {version}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject>
    <rdf:Bag>{keywords}</rdf:Bag>
   </dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


class SidecarWriter:
    """One file per image, complete or absent. A file that labelwise did not write stays, unless `overwrite`."""

    def __init__(
        self, kind: SidecarKind, folder: Path | None = None, *, overwrite: bool = False, resume: bool = False
    ) -> None:
        self._kind, self._folder, self._overwrite, self._resume = kind, folder, overwrite, resume
        self._owner: dict[Path, str] = {}  # the image of each sidecar of this run

    def path_of(self, image: str) -> Path:
        """`a.jpg` -> `a.jpg.json`, `a.txt`, `a.xmp`: the names that other programs look for."""
        path = Path(image)
        if self._folder is not None:
            # Below the folder, by the path as it was given; one that leads out of it is made absolute first.
            inside = Path(os.path.abspath(path)) if ".." in path.parts else path
            path = self._folder / inside.relative_to(inside.anchor)
        return path.with_name(path.name + ".json") if self._kind == "json" else path.with_suffix(f".{self._kind}")

    def wants(self, image: str) -> bool:
        file = self.path_of(image)
        other = self._owner.setdefault(file, image)
        if os.path.abspath(other) != os.path.abspath(image):
            raise LabelwiseError(
                f"{other!r} and {image!r} would share the sidecar {str(file)!r}; JSON sidecars have separate names",
                options={"sidecar": "json"},
            )
        if not file.exists() or self._overwrite:
            return True
        if self._resume:
            return False
        if not self._is_ours(file):
            raise LabelwiseError(
                f"{str(file)!r} exists and labelwise did not write it; overwrite such files, or choose another folder",
                options={"overwrite": True, "sidecar_dir": ...},
                either=True,
            )
        return True

    def _is_ours(self, file: Path) -> bool:
        text = file.read_text(encoding="utf-8", errors="replace")
        if self._kind == "xmp":
            return 'x:xmptk="labelwise ' in text
        if self._kind == "txt":
            return False  # a plain list of words says nothing about who wrote it
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(content, dict) and "labelwise" in content

    def write(self, prediction: Prediction, labels: dict[str, float]) -> None:
        if prediction.error is not None:
            return
        text = self._text(prediction, labels)
        atomic_write(self.path_of(str(prediction.image)), text.encode("utf-8", "backslashreplace"))

    def _text(self, prediction: Prediction, labels: dict[str, float]) -> str:
        if self._kind == "txt":
            return "".join(f"{label}\n" for label in labels)
        if self._kind == "xmp":
            keywords = "".join(f"\n     <rdf:li>{escape(label)}</rdf:li>" for label in labels)
            return _XMP.format(version=version("labelwise"), keywords=keywords + "\n    " if keywords else "")
        content: dict[str, Any] = prediction.to_dict(all_scores=True) | {"labels": labels}
        return json.dumps({"labelwise": version("labelwise"), **content}, indent=1, ensure_ascii=False) + "\n"

    def close(self) -> None:
        """Every file is complete already."""
