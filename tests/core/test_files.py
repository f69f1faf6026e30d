import hashlib
import os
import stat
from pathlib import Path

import pytest

from labelwise.core.files import atomic_write, replace_folder, sha256


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    atomic_write(file, "old")

    def stops(draft: Path) -> None:
        draft.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(file, stops)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["recipe.yaml"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_even_if_the_writer_is_stricter(tmp_path: Path, mask: int) -> None:
    def strict(draft: Path) -> None:
        draft.unlink()
        os.close(os.open(draft, os.O_CREAT | os.O_WRONLY, 0o600))  # as safetensors does

    before = os.umask(mask)
    try:
        atomic_write(tmp_path / "a", b"x")
        atomic_write(tmp_path / "b", strict)
        replace_folder(tmp_path / "folder", lambda fresh: None)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o666 & ~mask] * 2
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o777 & ~mask


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", "one")
    (tmp_path / "a").chmod(0o600)
    atomic_write(tmp_path / "a", "two")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_links_are_followed_devices_are_written_and_long_names_work(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    atomic_write("/dev/null", "gone")
    assert not Path("/dev/null").is_file()
    atomic_write(tmp_path / ("n" * 255), "long")
    assert (tmp_path / ("n" * 255)).read_text() == "long"


def test_a_folder_is_replaced_as_a_whole_or_stays(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def write(text: str):
        def fill(fresh: Path) -> None:
            (fresh / "config.json").write_text(text)
            if text == "bad":
                raise ValueError

        return fill

    replace_folder(folder, write("one"))
    (folder / "notes.txt").write_text("mine")
    (folder / "model.old").write_text("theirs")
    replace_folder(folder, write("two"), replaced=lambda name: name != "notes.txt")
    assert sorted(os.listdir(folder)) == ["config.json", "notes.txt"]
    with pytest.raises(ValueError):  # noqa: PT011
        replace_folder(folder, write("bad"))
    assert (folder / "config.json").read_text() == "two"
    assert os.listdir(tmp_path) == ["model"]


def test_the_digest_is_that_of_the_concatenation(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"b" * (1 << 21))
    whole = hashlib.sha256(b"a" + b"b" * (1 << 21) + b"c").digest()
    assert sha256("a", tmp_path / "b", memoryview(b"c")).digest() == whole
