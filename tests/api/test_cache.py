"""What is in the cache folder, and what emptying it deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

import labelwise as lw
from tests.fork_server import Command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As labelwise leaves it, beside files of somebody else: the variable may name any folder."""
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path))
    for name, size in (("features", 3_000_000), ("engines", 500_000)):
        entry = tmp_path / name / ("0123456789abcdef" * 2)
        entry.mkdir(parents=True)
        (entry / "one.safetensors").write_bytes(bytes(size))
        (entry / "about.json").write_bytes(b"{}")
        (tmp_path / name / "mine").mkdir()
        (tmp_path / name / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "features" / ("f" * 32)).symlink_to(tmp_path / "elsewhere")
    return tmp_path


def test_what_labelwise_made_is_counted_and_deleted_and_nothing_else(folder: Path) -> None:
    features, engines, models, streams = lw.cache().parts
    assert (features.files, features.bytes) == (2, 3_000_002)
    assert (engines.bytes, models.bytes, streams.bytes) == (500_002, 0, 0)
    deleted = lw.cache(clear="features")
    assert [part.name for part in deleted.parts] == ["features"]
    assert lw.cache().bytes == 500_002
    lw.cache(clear="all")
    assert lw.cache().bytes == 0
    assert len(list(folder.rglob("thesis.txt"))) == 2
    assert (folder / "elsewhere" / "kept").exists()
    with pytest.raises(lw.LabelwiseError, match="did you mean 'features'"):
        lw.cache(clear="feature")


def test_the_command_says_how_large_it_is_and_how_to_empty_it(folder: Path, labelwise: Command) -> None:
    said = labelwise("cache").stdout
    assert f"in {folder}:" in said
    assert "features   3.0 MB in 2 files" in said
    command = said.split("labelwise ", 1)[1].splitlines()[0].split()
    deleted = labelwise(*command)
    assert (deleted.returncode, deleted.stderr) == (0, "")
    assert "deleted" in deleted.stdout
    assert "features   0.0 MB in 0 files" in labelwise("cache").stdout
    assert "engines    0.5 MB in 2 files" in labelwise("cache").stdout
