"""Sidecars: predictions in one file per image, beside it, and `lw.untag`, which takes them away again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from labelwise.core.errors import LabelwiseError, counted, did_you_mean
from labelwise.core.files import atomic_write
from labelwise.core.progress import ShowProgress, track
from labelwise.data.decode import walk
from labelwise.data.images import is_image
from labelwise.data.xmp import Packet, XmpError, sidecars_of, tagged

if TYPE_CHECKING:
    from labelwise.runtime.prediction import Prediction

SidecarKind = Literal["json", "txt", "xmp"]


class SidecarChange(NamedTuple):
    """What becomes of one sidecar; None: there is no such file.

    Attributes:
        file: Its path.
        old: Its content before.
        new: Its content after.
    """

    file: Path
    old: bytes | None
    new: bytes | None

    @property
    def status(self) -> Literal["new", "changed", "deleted", "unchanged", "not written (no label applies)"]:
        if self.old == self.new:
            return "unchanged" if self.old is not None else "not written (no label applies)"
        return "new" if self.old is None else "deleted" if self.new is None else "changed"

    @property
    def added(self) -> list[str]:
        """The keywords that come in, if it is XMP."""
        return sorted(self._keywords(self.new) - self._keywords(self.old))

    @property
    def removed(self) -> list[str]:
        """The keywords that go, if it is XMP."""
        return sorted(self._keywords(self.old) - self._keywords(self.new))

    def _keywords(self, data: bytes | None) -> set[str]:
        if data is None or self.file.suffix.lower() != ".xmp":
            return set()
        return {name for names in Packet(data).lists.values() for name in names}

    def __str__(self) -> str:
        """
        >>> print(SidecarChange(Path("a.jpg.json"), b"{}", None))
        a.jpg.json   deleted
        """
        keywords = [*(f"+ {name}" for name in self.added), *(f"- {name}" for name in self.removed)]
        return "   ".join([str(self.file), self.status, *keywords])

    def apply(self) -> None:
        if self.new is None:
            self.file.unlink(missing_ok=True)
        elif self.new != self.old:
            atomic_write(self.file, self.new)


class SidecarWriter:
    """One file per image, complete or absent. XMP of other programs is kept and added to; any other file that labelwise
    did not write stays, unless `overwrite`.

    Args:
        kind: What to write.
        folder: Where, instead of beside the images.
        model: The name of the model, for XMP.
        overwrite: Replace files, whoever wrote them.
        resume: Leave out images that have their sidecar.
        dry_run: Only collect the `changes`.
    """

    def __init__(
        self,
        kind: SidecarKind,
        folder: Path | None = None,
        *,
        model: str = "",
        overwrite: bool = False,
        resume: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._kind, self._folder, self._overwrite, self._resume = kind, folder, overwrite, resume
        self._dry_run = dry_run
        self._about = {
            "model": model,
            "version": version("labelwise"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._owner: dict[Path, str] = {}  # the image of each sidecar of this run
        self.changes: list[SidecarChange] = []

    def path_of(self, image: str) -> Path:
        """`a.jpg` -> `a.jpg.json`, `a.txt`, `a.xmp`: the names that other programs look for. If only `a.jpg.xmp` is
        there, as darktable and digiKam call it, that one."""
        path = Path(image)
        if self._folder is not None:
            # Below the folder, by the path as it was given; one that leads out of it is made absolute first.
            inside = Path(os.path.abspath(path)) if ".." in path.parts else path
            path = self._folder / inside.relative_to(inside.anchor)
        if self._kind == "xmp" and (there := sidecars_of(path)):
            return there[0]
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
        if self._kind == "xmp":
            return self._wants_packet(file)
        if self._resume:
            return False
        if self._kind == "txt" or not _is_our_json(file.read_bytes()):  # a list of words does not say who wrote it
            raise LabelwiseError(
                f"{str(file)!r} exists and labelwise did not write it; overwrite such files, or choose another folder",
                options={"overwrite": True, "sidecar_dir": ...},
                either=True,
            )
        return True

    def _wants_packet(self, file: Path) -> bool:
        try:
            packet = Packet(file.read_bytes())
            tagged(packet.data, {"any": 1.0}, **self._about)
        except XmpError as error:
            raise LabelwiseError(
                f"{str(file)!r} cannot be added to ({error.message}); overwrite such files, or choose another folder",
                options={"overwrite": True, "sidecar_dir": ...},
                either=True,
            ) from None
        return not (self._resume and packet.predicted)

    def write(self, prediction: Prediction, labels: dict[str, float]) -> None:
        if prediction.error is not None:
            return
        file = self.path_of(str(prediction.image))
        old = file.read_bytes() if file.exists() else None
        change = SidecarChange(file, old, self._content(prediction, labels, None if self._overwrite else old))
        if self._dry_run:
            self.changes.append(change)
        else:
            change.apply()

    def _content(self, prediction: Prediction, labels: dict[str, float], old: bytes | None) -> bytes | None:
        if self._kind == "xmp":
            return _kept(tagged(old, labels, **self._about))
        if self._kind == "txt":
            return "".join(f"{label}\n" for label in labels).encode("utf-8", "backslashreplace")
        content: dict[str, Any] = prediction.to_dict(all_scores=True) | {"labels": labels}
        text = json.dumps({"labelwise": self._about["version"], **content}, indent=1, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Every file is complete already."""


def untag(
    paths: str | Path | Iterable[str | Path], *, dry_run: bool = False, progress: ShowProgress = False
) -> list[SidecarChange]:
    """Remove exactly what labelwise wrote into sidecars; all that others wrote stays as it is.

    XMP sidecars lose the keywords that labelwise added and its record of them. Files that are labelwise's own, XMP or
    JSON, are deleted. Text sidecars stay: they do not say who wrote them.

    Args:
        paths: Images, sidecars, patterns, or folders that are searched with all folders in them.
        dry_run: Change nothing.
        progress: Show a progress bar, or a callback `(description, done, total)`.

    Returns:
        What changed, or would change.

    Example:
        >>> import labelwise as lw
        >>> lw.untag("photos/", dry_run=True)  # doctest: +SKIP
    """
    changes: list[SidecarChange] = []
    damaged: list[str] = []
    files = dict.fromkeys(_find_sidecars([paths] if isinstance(paths, str | Path) else paths))
    for file in track(files, "Untagging", len(files), progress, unit="files"):
        old = file.read_bytes()
        if b"labelwise" not in old:
            continue
        try:
            new = _without_ours(file, old)
        except XmpError as error:
            damaged.append(error.message)
            continue
        if new != old:
            changes.append(SidecarChange(file, old, new))
            if not dry_run:
                changes[-1].apply()
    if damaged:
        more = f" (nor are {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise LabelwiseError(f"{damaged[0]}{more}; repair or delete it. {counted(len(changes), 'other')} changed")
    return changes


def _find_sidecars(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(os.path.expanduser, paths):
        if os.path.isdir(path):
            found = (os.path.join(folder, name) for folder, names in walk(path) for name in names)
            yield from (Path(name) for name in found if _may_be_sidecar(name) and os.path.isfile(name))
        elif os.path.isfile(path) and _may_be_sidecar(path):
            yield Path(path)
        elif os.path.isfile(path):
            ours = Path(path + ".json")
            yield from [*sidecars_of(path), *([ours] if ours.is_file() else [])]
        elif matches := sorted(glob(str(path), recursive=True)):
            yield from _find_sidecars(matches)
        else:
            raise LabelwiseError(f"no such file or folder: {str(path)!r}{did_you_mean(path)}")


def _may_be_sidecar(name: str) -> bool:
    stem, suffix = os.path.splitext(os.path.basename(name))
    return suffix.lower() == ".xmp" or (suffix == ".json" and is_image(stem))


def _without_ours(file: Path, data: bytes) -> bytes | None:
    if file.suffix == ".json":
        return None if _is_our_json(data) else data
    packet = Packet.read(file)
    return _kept(packet.without_predictions().data) if packet.predicted else data


def _kept(data: bytes) -> bytes | None:
    """None for a packet of labelwise's own that has nothing in it: that is no file."""
    return None if Packet(data).is_left_over else data


def _is_our_json(data: bytes) -> bool:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "labelwise" in content
