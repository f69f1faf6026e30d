"""Lists of paths: through real pipes, as a stream, with names that are not text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
import torch
from cyclopts import CycloptsError
from hypothesis import given
from hypothesis import strategies as st

from labelwise.cli import app
from labelwise.cli.predict import predict, read_paths, split_paths
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model
from tests.fork_server import Command


@given(st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name)), st.integers(1, 7))
def test_nul_separated_names_come_back_whatever_is_in_them(names: list[bytes], chunk: int) -> None:
    class Slow(BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(chunk)  # as a pipe does

    found = list(split_paths(Slow(b"".join(name + b"\0" for name in names)), b"\0"))
    assert found == [*names, b""]


def test_lines_of_any_system(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"a b.jpg\r\n\n\xe9.jpg\nlast.jpg")
    assert list(read_paths(str(tmp_path / "list"))) == ["a b.jpg", os.fsdecode(b"\xe9.jpg"), "last.jpg"]


def test_a_mark_of_the_encoding_is_no_part_of_the_first_path(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("\ufeffa.jpg\nb.jpg\n", encoding="utf-8")
    assert list(read_paths(str(tmp_path / "list.txt"))) == ["a.jpg", "b.jpg"]


def test_a_path_is_predicted_while_the_list_is_still_being_written() -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb") as reading, open(theirs, "wb", buffering=0) as writing:
        paths = split_paths(reading, b"\n")
        writing.write(b"first.jpg\nsec")
        assert next(paths) == b"first.jpg"  # would hang if it waited for more
        writing.write(b"ond.jpg\n")
        assert next(paths) == b"second.jpg"


def test_a_real_pipe_with_find(labelwise: Command, tmp_path: Path) -> None:
    """`find -print0 | labelwise predict MODEL - -0`, with a line end and a byte that is no UTF-8 in the names."""
    image = make_sample(tmp_path / "sample", images=1, size=32).images[0]
    torch.manual_seed(0)
    create_model("test_resnet", "csra", ("boat", "car"), weights="none", size=32).save(tmp_path / "model")
    names = [b"line\nend.jpg", b"latin-\xe9.jpg", b"plain.jpg"]
    (tmp_path / "photos").mkdir()
    for name in names:
        shutil.copy(image, os.fsencode(tmp_path / "photos") + b"/" + name)
    found = subprocess.Popen(["find", "photos", "-type", "f", "-print0"], stdout=subprocess.PIPE, cwd=tmp_path)
    files = ["--json", "x.json", "--csv", "x.csv"]
    done = labelwise("predict", "model", "-", "-0", *files, stdin=found.stdout, cwd=tmp_path)
    assert found.wait(60) == 0
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "x.json").read_text())
    assert {os.fsencode(entry["image"]) for entry in entries} == {b"photos/" + name for name in names}
    assert all(set(entry["all_scores"]) == {"boat", "car"} for entry in entries)
    assert done.stdout.count("boat") == 3
    printed = {line.split("   ")[0].removeprefix("photos/") for line in done.stdout.splitlines()}
    assert printed == {r"line\nend.jpg", r"latin-\udce9.jpg", "plain.jpg"}


def test_a_list_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_sample(tmp_path / "sample", images=3, size=32).images
    create_model("test_resnet", "csra", ("boat", "car"), weights="none", size=32).save(tmp_path / "model")
    (tmp_path / "list.txt").write_text(f"{images[2]}\n{tmp_path / 'gone.jpg'}\n{images[0]}\n")
    predict(str(tmp_path / "model"), images[1], from_file=str(tmp_path / "list.txt"), top=1)
    said = capsys.readouterr()
    assert [line.split("   ")[0] for line in said.out.splitlines()] == [images[1], images[2], images[0]]
    assert "no such file" in said.err
    assert "1 of 4 images skipped" in said.err
    with pytest.raises(LabelwiseError, match="not from both"):
        predict(str(tmp_path / "model"), stdin=True, from_file="list.txt")


@pytest.mark.parametrize("words", [["-"], ["--from-file", "-"], ["--from-file", "-", "-0"]])
def test_a_hyphen_is_stdin_and_a_misspelt_option_is_none(words: list[str]) -> None:
    _, bound, _ = app.parse_args(["predict", "m", *words, "a.jpg"], exit_on_error=False, print_error=False)
    assert bound.args == ("m", "a.jpg")
    assert bound.kwargs.get("stdin") or bound.kwargs.get("from_file") == "-"
    with pytest.raises(CycloptsError, match="--topp"):
        app.parse_args(["predict", "m", *words, "--topp", "3"], exit_on_error=False, print_error=False)
