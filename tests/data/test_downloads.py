"""Against a real HTTP server on the loopback interface."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data.downloads import DOWNLOADS, WEIGHTS, Archive, download, fetch, fetch_all, named_file, unpack


class Site:
    """What the server holds and how it behaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []  # the Range header of each request
        self.supports_range = True
        self.supports_if_range = True
        self.sends_tags = True
        self.cut_after: int | None = None  # bytes after which the next answer breaks off
        self.url = ""

    def archive(self, name: str) -> Archive:
        return Archive(f"{self.url}/{name}", hashlib.md5(self.files[name]).hexdigest())


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.ranges.append(wanted)
            content = state.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start, tag = 0, f'"{hashlib.md5(content).hexdigest()}"'
            is_same = not state.supports_if_range or self.headers.get("If-Range", tag) == tag
            if wanted and state.supports_range and is_same:
                match = re.fullmatch(r"bytes=(\d+)-", wanted)
                assert match
                start = int(match[1])
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                self.send_response(206)
            else:
                self.send_response(200)
            if state.sends_tags:
                self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if state.cut_after is not None:
                self.wfile.write(content[start : start + state.cut_after])
                state.cut_after = None
                return
            self.wfile.write(content[start:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()


def tar_of(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


PHOTOS = {"VOCdevkit/VOC2007/JPEGImages/1.jpg": b"\xff" * 50_000, "VOCdevkit/VOC2007/readme.txt": b"hello"}


def test_a_tar_and_a_zip_end_up_unpacked(site: Site, tmp_path: Path) -> None:
    site.files = {"a.tar": tar_of(PHOTOS), "b.zip": zip_of({"annotations/x.json": b"{}", "annotations/": b""})}
    told: list[tuple[str, int, int | None]] = []
    fetch_all(
        (site.archive("a.tar"), site.archive("b.zip")), tmp_path / "out", progress=lambda *event: told.append(event)
    )
    found = {
        str(file.relative_to(tmp_path / "out")): file.read_bytes()
        for file in (tmp_path / "out").rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }
    assert found == PHOTOS | {"annotations/x.json": b"{}"}  # and the archives are gone
    assert ("Fetching a.tar", len(site.files["a.tar"]), len(site.files["a.tar"])) in told
    assert {what.split()[0] for what, _, _ in told} == {"Fetching", "Checking", "Unpacking"}

    site.ranges.clear()
    fetch_all((site.archive("a.tar"), site.archive("b.zip")), tmp_path / "out")
    assert site.ranges == []  # complete: nothing is fetched again


def test_an_interrupted_download_goes_on(site: Site, tmp_path: Path) -> None:
    site.files = {"a.tar": tar_of(PHOTOS)}
    site.cut_after = 20_000
    with pytest.raises(LabelwiseError, match=r"interrupted after 20,000 bytes .* try again to resume"):
        fetch_all((site.archive("a.tar"),), tmp_path)
    assert not (tmp_path / "VOCdevkit").exists()
    assert not (tmp_path / "a.tar").exists()  # no half file under the final name
    fetch_all((site.archive("a.tar"),), tmp_path)
    assert site.ranges == [None, "bytes=20000-"]
    assert (tmp_path / "VOCdevkit/VOC2007/JPEGImages/1.jpg").read_bytes() == b"\xff" * 50_000


def test_a_server_that_cannot_resume(site: Site, tmp_path: Path) -> None:
    site.files = {"a.tar": tar_of(PHOTOS)}
    site.supports_range = False
    (tmp_path / "a.tar.part").write_bytes(b"the beginning of something else")
    assert fetch(site.archive("a.tar"), tmp_path).read_bytes() == site.files["a.tar"]
    assert site.ranges == ["bytes=31-"]


def test_a_partial_file_that_is_complete(site: Site, tmp_path: Path) -> None:
    site.files = {"a.tar": tar_of(PHOTOS)}
    (tmp_path / "a.tar.part").write_bytes(site.files["a.tar"])
    assert fetch(site.archive("a.tar"), tmp_path).read_bytes() == site.files["a.tar"]


def test_a_wrong_checksum_is_refused_and_forgotten(site: Site, tmp_path: Path) -> None:
    site.files = {"a.tar": tar_of(PHOTOS)}
    right = site.archive("a.tar")
    with pytest.raises(LabelwiseError, match=r"checksum [0-9a-f]{32} is not the published 0{32}"):
        fetch_all((Archive(right.url, "0" * 32),), tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.tar").write_bytes(b"old")
    with pytest.raises(LabelwiseError, match="delete it and try again"):
        fetch(right, tmp_path)


def test_unreachable_and_missing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match=r"answers 404 .* save it as 'nothing.tar'"):
        fetch(Archive(f"{site.url}/nothing.tar", "0" * 32), tmp_path)
    with pytest.raises(LabelwiseError, match="try again to resume"):
        fetch(Archive("http://127.0.0.1:9/a.tar", "0" * 32), tmp_path)


def link(name: str, target: str, kind: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)
        inside = tarfile.TarInfo(f"{name}/evil.txt")
        inside.size = 4
        archive.addfile(inside, io.BytesIO(b"evil"))
    return data.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "up.tar": lambda: tar_of({"good.txt": b"x", "../evil.txt": b"evil"}),
    "deep.tar": lambda: tar_of({"a/b/../../../evil.txt": b"evil"}),
    "absolute.tar": lambda: tar_of({"/tmp/labelwise-evil.txt": b"evil"}),
    "symlink.tar": lambda: link("door", "..", tarfile.SYMTYPE),
    "hardlink.tar": lambda: link("door", "/etc/passwd", tarfile.LNKTYPE),
    "device.tar": lambda: link("door", "", tarfile.CHRTYPE),
    "up.zip": lambda: zip_of({"good.txt": b"x", "../evil.txt": b"evil"}),
    "windows.zip": lambda: zip_of({"..\\evil.txt": b"evil"}),
    "drive.zip": lambda: zip_of({"C:/evil.txt": b"evil"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_write_nothing(name: str, tmp_path: Path) -> None:
    archive, folder = tmp_path / name, tmp_path / "out"
    archive.write_bytes(HOSTILE[name]())
    folder.mkdir()
    with pytest.raises(LabelwiseError, match="not unpacked"):
        unpack(archive, folder)
    assert list(folder.iterdir()) == []
    assert {file.name for file in tmp_path.iterdir()} == {name, "out"}
    assert not Path("/tmp/labelwise-evil.txt").exists()


def test_unpacking_that_breaks_off_leaves_no_broken_file(tmp_path: Path) -> None:
    archive, folder, photos = tmp_path / "a.zip", tmp_path / "out", {"a/1.jpg": b"one", "a/2.jpg": b"content"}
    archive.write_bytes(zip_of(photos).replace(b"content", b"damaged"))
    with pytest.raises(zipfile.BadZipFile):
        unpack(archive, folder)
    assert list(folder.rglob("*.jpg")) == [folder / "a/1.jpg"]
    archive.write_bytes(zip_of(photos))
    unpack(archive, folder)
    assert {file.name: file.read_bytes() for file in (folder / "a").iterdir()} == {"1.jpg": b"one", "2.jpg": b"content"}


def test_the_catalogue() -> None:
    with pytest.raises(LabelwiseError, match="did you mean 'coco2017'"):
        download("coco2071", "nowhere")
    archives = [archive for dataset in DOWNLOADS.values() for archive in dataset]
    assert all(re.fullmatch(r"[0-9a-f]{32}", archive.md5) for archive in archives)
    assert len({archive.md5 for archive in archives}) == len({archive.url for archive in archives}) == 8
    names = [file.name for files in WEIGHTS.values() for file in files]
    assert len(set(names)) == len(names)
    assert {named_file(name) for name in names} == set(WEIGHTS)


def test_weights_are_not_unpacked_and_without_a_published_checksum_the_first_one_counts(
    site: Site, tmp_path: Path
) -> None:
    site.files = {"net.pth": b"weights" * 10_000}
    net = Archive(f"{site.url}/net.pth")
    site.cut_after = 20_000
    with pytest.raises(LabelwiseError, match="try again to resume"):
        fetch_all((net,), tmp_path)
    fetch_all((net,), tmp_path)
    assert site.ranges == [None, "bytes=20000-"]
    record = f"{hashlib.sha256(site.files['net.pth']).hexdigest()}  net.pth\n"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "net.pth": site.files["net.pth"],
        "net.pth.sha256": record.encode(),
    }
    fetch_all((net,), tmp_path)
    assert len(site.ranges) == 2  # there already
    (tmp_path / "net.pth").write_bytes(b"damaged")
    with pytest.raises(LabelwiseError, match="not the file that was downloaded first"):
        fetch_all((net,), tmp_path)


NET = b"weights" * 10_000


@pytest.mark.parametrize("stale", [b"another file", b"a longer file" * 10_000])
def test_without_a_checksum_a_partial_file_of_unknown_origin_is_not_completed(
    stale: bytes, site: Site, tmp_path: Path
) -> None:
    site.files = {"net.pth": NET}
    (tmp_path / "net.pth.part").write_bytes(stale)
    assert fetch(Archive(f"{site.url}/net.pth"), tmp_path).read_bytes() == NET
    assert site.ranges == [None]


@pytest.mark.parametrize("supports_if_range", [True, False])
def test_a_file_that_changes_between_two_attempts_is_fetched_from_its_beginning(
    supports_if_range: bool, site: Site, tmp_path: Path
) -> None:
    site.supports_if_range = supports_if_range
    site.files = {"net.pth": b"of last week" * 10_000}
    site.cut_after = 20_000
    with pytest.raises(LabelwiseError, match="try again to resume"):
        fetch(Archive(f"{site.url}/net.pth"), tmp_path)
    site.files = {"net.pth": NET}
    assert fetch(Archive(f"{site.url}/net.pth"), tmp_path).read_bytes() == NET
    assert {file.name for file in tmp_path.iterdir()} == {"net.pth", "net.pth.sha256"}


@pytest.mark.parametrize(("draft", "requests"), [(NET, 1), (NET + b"more", 2)])
def test_a_draft_beyond_the_end_is_kept_only_at_the_right_size(
    draft: bytes, requests: int, site: Site, tmp_path: Path
) -> None:
    site.files = {"net.pth": NET}
    (tmp_path / "net.pth.part").write_bytes(draft)
    (tmp_path / "net.pth.part.version").write_text(f'"{hashlib.md5(NET).hexdigest()}"')
    assert fetch(Archive(f"{site.url}/net.pth"), tmp_path).read_bytes() == NET
    assert len(site.ranges) == requests


def test_a_server_without_tags_sends_all_of_it_again(site: Site, tmp_path: Path) -> None:
    site.files, site.sends_tags, site.cut_after = {"net.pth": NET}, False, 20_000
    with pytest.raises(LabelwiseError, match=r"try again$"):
        fetch(Archive(f"{site.url}/net.pth"), tmp_path)
    assert fetch(Archive(f"{site.url}/net.pth"), tmp_path).read_bytes() == NET
    assert site.ranges == [None, None]
