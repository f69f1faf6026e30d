"""`labelwise data`, in this process and in a real one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from labelwise.cli.data import app
from labelwise.core.errors import LabelwiseError
from labelwise.data.hiding import hide
from labelwise.data.sources import open_data
from tests import fork_server


def run(*arguments: object) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    run("sample", "--out", tmp_path / "sample", "--images", 60, "--size", 48)
    return tmp_path / "sample" / "labels.csv"


def test_inspect(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sample.parent / "images" / "00003.jpg").write_bytes(b"oops")
    capsys.readouterr()
    pytest.importorskip("matplotlib")
    run("inspect", sample, "--json", tmp_path / "r.json", "--picture", tmp_path / "r.png", "--pairs", 4)
    output = " ".join(capsys.readouterr().out.split())
    assert "60 images (train 42, val 6, test 12), 13 labels" in output
    assert "1 image cannot be decoded, the first:" in output
    assert "00003.jpg (not an image of a known format)" in output
    assert "moon stars" in output
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["images"] == 60
    assert len(content["together"]) <= 4
    assert Image.open(tmp_path / "r.png").format == "PNG"
    run("inspect", sample, "--fast")
    fast = capsys.readouterr().out
    assert "Images were not decoded (--fast): " in fast
    assert "cannot be decoded" not in fast


def test_inspect_finds_missing_files(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sample.parent / "images" / "00003.jpg").unlink()
    run("inspect", sample)
    said = capsys.readouterr().out
    assert f"missing: {sample.parent / 'images' / '00003.jpg'}" in said
    assert "1 image is missing, the first:" in said
    assert "cannot be decoded" not in said
    for number in range(10, 16):
        (sample.parent / "images" / f"{number:05}.jpg").unlink()
    run("inspect", sample, "--fast")
    said = capsys.readouterr().out
    assert said.count("missing: ") == 5
    assert "\nand 2 more; --json has all\n" in said


def test_split(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabelwiseError, match="force=True"):
        run("split", sample, "--out", tmp_path / "new.csv")
    capsys.readouterr()
    run("split", sample, "--out", tmp_path / "new.csv", "--fractions", "train=0.5,test=0.5", "--force")
    captured = capsys.readouterr()
    table = open_data(tmp_path / "new.csv")
    assert captured.out.strip().endswith("new.csv: train 30, test 30")
    assert captured.err == ""  # no progress bar where nobody looks
    assert {name: len(table.rows(name)) for name in table.split_names} == {"train": 30, "test": 30}
    first = (tmp_path / "new.csv").read_bytes()
    again = "split", sample, "--out", tmp_path / "new.csv", "--fractions", "train=0.5,test=0.5", "--force"
    with pytest.raises(LabelwiseError, match="exists; name another file, or replace it"):
        run(*again)
    run(*again, "--overwrite")
    assert (tmp_path / "new.csv").read_bytes() == first


def test_hide(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    run("hide", sample, "--keep", "one-positive", "--out", tmp_path / "few.csv")
    assert "few.csv: 60 images; unknown labels: train 92.3%, val 92.3%, test 0.0%" in capsys.readouterr().out
    table = open_data(tmp_path / "few.csv")
    assert (table.targets() == hide(sample, "one-positive").targets()).all()
    with pytest.raises(LabelwiseError, match="would be replaced, and with it all columns"):
        run("hide", sample, "--keep", 0.5, "--out", sample)


@pytest.mark.parametrize("to", ["csv", "tsv", "jsonl", "coco", "webdataset"])
def test_convert(sample: Path, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("convert", sample, "--to", to, "--out", tmp_path / "out")
    assert f"out: 60 images as {to}" in capsys.readouterr().out
    if to != "webdataset":
        read = open_data(f"coco:{tmp_path / 'out'}?empty=keep") if to == "coco" else open_data(tmp_path / "out")
        assert len(read) == 60


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    text = capsys.readouterr().out
    assert all(command in text for command in ("inspect", "split", "convert", "download", "sample"))
    run("inspect", "--help")
    assert "--picture" in capsys.readouterr().out


def test_unknown_dataset() -> None:
    with pytest.raises(LabelwiseError, match="did you mean 'voc2007'"):
        run("download", "voc2070", "--out", "nowhere")


def test_in_a_real_process(tmp_path: Path) -> None:
    code = "from labelwise.cli.data import app; app()"

    def process(*arguments: object) -> subprocess.CompletedProcess[str]:
        return fork_server.run("-c", code, *arguments)

    made = process("sample", "--out", tmp_path / "s", "--images", 20, "--size", 40)
    assert made.returncode == 0, made.stderr
    assert "20 images, 13 labels" in made.stdout
    seen = process("inspect", tmp_path / "s", "--fast")
    assert seen.returncode == 0, seen.stderr
    assert "20 images" in seen.stdout
    wrong = process("inspect", tmp_path / "s", "--no-such-option")
    assert wrong.returncode != 0


def test_labels_and_names_that_other_programs_read_as_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich's markup, matplotlib's mathematics, and bytes that are not UTF-8."""
    pytest.importorskip("matplotlib")
    for number in range(3):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.jpg")
    rows = ["0.jpg,car [/b]|US$_$", "1.jpg,car [/b]|toy [car]", "2.jpg,US$_$"]
    (tmp_path / "m.csv").write_text("image,labels\n" + "\n".join(rows) + "\n")
    run("inspect", tmp_path / "m.csv", "--picture", tmp_path / "m.png")
    said = capsys.readouterr().out
    assert "car [/b]" in said
    assert "toy [car]" in said
    assert (tmp_path / "m.png").stat().st_size > 1000
    (tmp_path / "cat").mkdir()
    (tmp_path / "0.jpg").rename(os.fsdecode(bytes(tmp_path) + b"/cat/caf\xe9.jpg"))
    (tmp_path / "1.jpg").rename(tmp_path / "cat" / "1.jpg")
    (tmp_path / "cat" / "copy.jpg").write_bytes((tmp_path / "cat" / "1.jpg").read_bytes())
    run("inspect", f"imagefolder:{tmp_path}", "--json", tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["images"] == 3


def test_a_set_without_labels_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "0.jpg")
    (tmp_path / "m.csv").write_text("image,labels\n0.jpg,\n")
    run("inspect", tmp_path / "m.csv")
    assert "There are no labels" in capsys.readouterr().out


def test_split_says_what_is_lost(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabelwiseError, match="would be replaced, and with it all columns"):
        run("split", sample, "--out", sample)
    photos = [f"../sample/images/{number:05d}.jpg" for number in range(3)]
    wide = tmp_path / "other" / "wide.csv"
    wide.parent.mkdir()
    wide.write_text("image,cat,zebra\n" + "".join(f"{photo},1,0\n" for photo in photos))
    capsys.readouterr()
    run("split", wide, "--out", tmp_path / "new.csv", "--fractions", "train=0.6,holdout=0.4")
    said = " ".join(capsys.readouterr().err.split())
    assert "1 label that no image has is gone (zebra)" in said
    assert f"open it with {tmp_path}/new.csv?splits=train,holdout" in said
    assert set(open_data(f"{tmp_path}/new.csv?splits=train,holdout").splits) == {"train", "holdout"}
    run("split", wide, "--out", tmp_path / "three.csv")
    assert "too few images: none is in 'val'" in " ".join(capsys.readouterr().err.split())
