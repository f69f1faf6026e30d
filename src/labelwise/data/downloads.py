"""Download public datasets and weights: resumable, verified against published checksums, unpacked safely.

Where no checksum is published, the first download writes one next to the file (`NAME.sha256`), and later calls verify
the file against it: a damaged or replaced file is noticed, a first download of the wrong content is not.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.files import atomic_write
from labelwise.core.progress import ShowProgress, progress_of, track

_CHUNK = 1 << 20
_PARTIAL = ".part"


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str = ""  # empty: none is published

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_packed(self) -> bool:
        return self.name.endswith((".tar", ".zip"))


_VOC, _COCO = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007", "http://images.cocodataset.org"
DOWNLOADS: dict[str, tuple[Archive, ...]] = {
    "voc2007": (
        Archive(f"{_VOC}/VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
        Archive(f"{_VOC}/VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f"),
    ),
    "coco2014": (
        Archive(f"{_COCO}/annotations/annotations_trainval2014.zip", "0a379cfc70b0e71301e0f377548639bd"),
        Archive(f"{_COCO}/zips/val2014.zip", "a3d79f5ed8d289b7a7554ce06a5782b3"),
        Archive(f"{_COCO}/zips/train2014.zip", "0da8c0bd3d6becc4dcb32757491aca88"),
    ),
    "coco2017": (
        Archive(f"{_COCO}/annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c"),
        Archive(f"{_COCO}/zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80"),
        Archive(f"{_COCO}/zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2"),
    ),
}
# Weights of ML-Decoder and of CSL, by the same authors, both under the MIT licence; the authors publish no checksums.
_MIIL = "https://miil-public-eu.oss-eu-central-1.aliyuncs.com/model-zoo"
WEIGHTS: dict[str, tuple[Archive, ...]] = {
    # what the authors start from: their training script names the first, Open Images models are the others
    "tresnet-l-open-images": (Archive(f"{_MIIL}/ML_Decoder/tresnet_l_pretrain_ml_decoder.pth"),),
    "tresnet-m-open-images": (Archive(f"{_MIIL}/ML_Decoder/tresnet_m_open_images_200_groups_86_8.pth"),),
    "tresnet-l-open-images-csl": (Archive(f"{_MIIL}/CSL/opim_v6/ltresnet_v2_opim_87.34.pth"),),
    "tresnet-m-open-images-csl": (Archive(f"{_MIIL}/CSL/opim_v6/mtresnet_opim_86.72.pth"),),
    # trained models for `lw.load_checkpoint`
    "ml-decoder-coco-tresnet-m": (Archive(f"{_MIIL}/ML_Decoder/tresnet_m_COCO_224_84_2.pth"),),
    "ml-decoder-coco-tresnet-l": (Archive(f"{_MIIL}/ML_Decoder/tresnet_l_COCO__448_90_0.pth"),),
    "ml-decoder-coco-tresnet-xl": (Archive(f"{_MIIL}/ML_Decoder/tresnet_xl_COCO_640_91_4.pth"),),
    "ml-decoder-cars-tresnet-l": (Archive(f"{_MIIL}/ML_Decoder/tresnet_l_stanford_card_96.41.pth"),),
}


def named_file(name: str) -> str | None:
    """The name in the table of a file of weights.

    >>> named_file("tresnet_l_pretrain_ml_decoder.pth"), named_file("mine.pth")
    ('tresnet-l-open-images', None)
    """
    return next((key for key, files in WEIGHTS.items() for file in files if file.name == name), None)


def download(
    dataset: str, out: str | Path = ".", *, keep_archives: bool = False, progress: ShowProgress = False
) -> Path:
    """Download a public dataset or weights, verify and unpack them. After an interruption, the same call resumes.

    Args:
        dataset: voc2007 (0.9 GB), coco2014 (20 GB), coco2017 (20 GB), or the name of weights (docs/guides/models.md).
        out: The folder to put it into. Default: the current one, where recipes look for weights.
        keep_archives: Keep the archives after unpacking.
        progress: Whether to show it, or a callback.

    >>> download("voc2007", "data")  # doctest: +SKIP
    PosixPath('data')
    """
    known = DOWNLOADS | WEIGHTS
    if dataset not in known:
        raise unknown_name("download", dataset, known)
    return fetch_all(known[dataset], out, keep_archives=keep_archives, progress=progress)


def fetch_all(
    archives: tuple[Archive, ...], out: str | Path, *, keep_archives: bool = False, progress: ShowProgress = False
) -> Path:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        if not archive.is_packed:
            fetch(archive, folder, progress)
            continue
        done = folder / f".{archive.name}.done"  # written last: what it stands for is unpacked completely
        if done.exists() and done.read_text() == archive.md5:
            continue
        file = fetch(archive, folder, progress)
        unpack(file, folder, progress)
        atomic_write(done, archive.md5)
        if not keep_archives:
            file.unlink()
    return folder


def fetch(archive: Archive, folder: Path, progress: ShowProgress = False) -> Path:
    """Download and verify a file. It gets its name only when its checksum is right."""
    file, draft, version = (folder / (archive.name + end) for end in ("", _PARTIAL, f"{_PARTIAL}.version"))
    is_new = not file.exists()
    if is_new:
        _fetch_rest(archive, draft, version, progress)
        version.unlink(missing_ok=True)
        if archive.md5 and (found := _digest(draft, "md5", progress)) != archive.md5:
            draft.unlink()  # resuming cannot repair it
            raise LabelwiseError(
                f"{archive.url}: checksum {found} is not the published {archive.md5}; the file was deleted, try again"
            )
        os.replace(draft, file)
    if not archive.md5:
        _compare_with_first_download(file, progress)
    elif not is_new and _digest(file, "md5", progress) != archive.md5:
        raise LabelwiseError(f"{file} has another checksum than the published one; delete it and try again")
    return file


def _fetch_rest(archive: Archive, draft: Path, version: Path, progress: ShowProgress) -> None:
    """Complete the draft. `version` holds the server's tag of the file that it is the beginning of.

    With neither a tag nor a checksum, the rest might be that of another file: it is fetched from its beginning.
    """
    tag = version.read_text(encoding="utf-8") if version.exists() else ""
    have = draft.stat().st_size if draft.exists() and (tag or archive.md5) else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    if have and tag:
        headers["If-Range"] = tag
    request = urllib.request.Request(archive.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            current = _tag(response.headers)
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                have = 0  # another file by now, or a server that cannot resume: it sends all of it
            elif tag and current not in ("", tag):  # a server that ignores If-Range
                draft.unlink()
                return _fetch_rest(archive, draft, version, progress)
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with (
                draft.open("ab" if have else "wb") as file,
                progress_of(f"Fetching {archive.name}", total, progress, done=have, unit="bytes") as advance,
            ):
                if not have:  # the draft is empty now: the tag never belongs to older content
                    tag = current
                    version.write_text(tag, encoding="utf-8")
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    advance(len(chunk))
            if total is not None and have < total:
                raise http.client.IncompleteRead(b"", total - have)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            if archive.md5 or error.headers.get("Content-Range") == f"bytes */{have}":
                return None  # complete already; the checksum decides, if there is one
            draft.unlink()
            return _fetch_rest(archive, draft, version, progress)
        then = "try again later"
        if error.code in (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND):
            then = f"the server does not give it out any more; with a copy from elsewhere, save it as {archive.name!r}"
        raise LabelwiseError(f"{archive.url} answers {error.code} {error.reason}; {then}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise LabelwiseError(
            f"{archive.url} was interrupted after {have:,} bytes ({reason}); try again"
            + (" to resume from there" if tag or archive.md5 else "")
        ) from None


def _tag(headers: Message) -> str:
    """What If-Range compares: a strong ETag, else the date; empty if the server tells neither."""
    etag: str = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")


def _compare_with_first_download(file: Path, progress: ShowProgress) -> None:
    """Write the file's checksum next to it, or compare with the one there, in the format of `sha256sum`."""
    record, found = file.with_name(file.name + ".sha256"), _digest(file, "sha256", progress)
    if not record.exists():
        atomic_write(record, f"{found}  {file.name}\n")
    elif record.read_text(encoding="utf-8").split()[:1] != [found]:
        raise LabelwiseError(
            f"{file} is not the file that was downloaded first ({record.name}); delete both and try again"
        )


def _digest(file: Path, algorithm: str, progress: ShowProgress) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    what = f"Checking {file.name.removesuffix(_PARTIAL)}"
    with file.open("rb") as stream, progress_of(what, file.stat().st_size, progress, unit="bytes") as advance:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


# ---- unpacking


def unpack(archive: Path, folder: Path, progress: ShowProgress = False) -> None:
    """Unpack a tar or zip file below `folder`.

    A member that would be written elsewhere, or that is neither a file nor a folder, is an error before anything is
    written.
    """
    contents: dict[str, Callable[[], Any]]  # how each file is opened, by its name
    with zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive) as opened:
        if isinstance(opened, zipfile.ZipFile):
            contents = {name: partial(opened.open, name) for name in opened.namelist() if not name.endswith("/")}
        else:
            contents = {entry.name: partial(opened.extractfile, entry) for entry in opened if not entry.isdir()}
            special = next((entry.name for entry in opened if not (entry.isfile() or entry.isdir())), None)
            if special is not None:
                raise LabelwiseError(f"{archive} holds {special!r}, which is neither a file nor a folder; not unpacked")
        for name in contents:
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise LabelwiseError(f"{archive} holds {name!r}, which would be written elsewhere; not unpacked")
        for name in track(contents, f"Unpacking {archive.name}", shown=progress, unit="files"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".unpacking{_PARTIAL}")  # no image is cut off, whenever the process stops
            with contents[name]() as content, draft.open("wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
            os.replace(draft, target)
