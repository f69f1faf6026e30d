"""Hostile tables and image files: one line each, no traceback, no endless wait."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data import inspect, open_data
from labelwise.data.images import BadImageError, load_image
from labelwise.jobs.parts import FilesPart
from tests import fork_server

pytestmark = pytest.mark.attack


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    """Beside a photo: a pipe, a link that leads to itself, a folder, and a device, all called like photos."""
    Image.new("RGB", (8, 8)).save(tmp_path / "good.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    return tmp_path


ODD = {
    "folder.jpg": "a folder, not a file",
    "loop.jpg": "Too many levels of symbolic links",
    "pipe.jpg": "not a regular file",
    "zero.jpg": "not a regular file",
}


def test_pipes_loops_and_devices_are_bad_images(odd_files: Path) -> None:
    for name, reason in ODD.items():
        with pytest.raises(BadImageError, match=reason):
            load_image(odd_files / name)
    part = FilesPart(tuple(str(odd_files / name) for name in (*ODD, "good.jpg")))
    assert [image.problem for image in part.images()] == [*ODD.values(), None]


def test_inspect_and_predict_do_not_wait_for_a_pipe(odd_files: Path, labelwise: fork_server.Command) -> None:
    rows = "".join(f"{name},cat\n" for name in ("good.jpg", *ODD))
    (odd_files / "photos.csv").write_text(f"image,labels\n{rows}")
    assert [bad.reason for bad in inspect(odd_files / "photos.csv").broken or []] == list(ODD.values())
    said = labelwise("predict", odd_files / "pipe.jpg")
    assert said.returncode == 2
    assert f"'{odd_files}/pipe.jpg' cannot be decoded (not a regular file)" in said.stderr


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "NUL in a path": ("t.csv", "image,labels\na\0b.jpg,cat\n", "row 2: the path of the image holds a NUL character"),
    "deep JSON": ("t.jsonl", f'{{"image": "1.jpg", "labels": {DEEP}}}\n', r"row 1: not JSON \(nested too deeply\)"),
    "a deep file": ("t.json", DEEP, r"not JSON \(nested too deeply\)"),
    "a deep cell": ("t.csv", f"image,labels\n1.jpg,{DEEP}\n", "row 2: cannot read the labels"),
    "9,000 digits": ("t.jsonl", f'{{"image": "1.jpg", "labels": [{"9" * 9000}]}}\n', "row 1: not JSON .*4300 digits"),
    "9,000 digits in COCO": ("t.json", f'{{"images": [{"9" * 9000}]}}', "not JSON .*4300 digits"),
    "half a character in a label": ("t.jsonl", r'{"image": "1.jpg", "labels": ["\ud800"]}', "half of a character"),
    "half a character in a column": ("t.jsonl", r'{"image": "1.jpg", "\ud800": 1}', "half of a character"),
    "half a character in a path": ("t.jsonl", r'{"image": "\ud800.jpg", "labels": []}', "row 1: .*half of a character"),
    "half a character in a split": ("t.jsonl", r'{"image": "1.jpg", "labels": [], "split": "\udfff"}', "unknown split"),
    "quotes without end": ("t.csv", "image,labels\n" + '1.jpg,"\n' * 5000, "row 2: the quotes in column 'labels'"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_tables_are_one_line(attack: str, tmp_path: Path) -> None:
    name, text, message = HOSTILE[attack]
    (tmp_path / "1.jpg").touch()
    (tmp_path / name).write_text(text)
    begun = time.process_time()
    with pytest.raises(LabelwiseError, match=message) as caught:
        open_data(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - begun < 5


def test_the_command_line_prints_half_a_character_as_one_line(tmp_path: Path, labelwise: fork_server.Command) -> None:
    (tmp_path / "1.jpg").touch()
    (tmp_path / "t.jsonl").write_text(json.dumps({"image": "1.jpg", "labels": ["\ud800"]}))
    said = labelwise("data", "inspect", tmp_path / "t.jsonl")
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert "holds half of a character" in said.stderr


@pytest.mark.parametrize("columns", [40_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_one_column_per_label_takes_linear_time(columns: int, tmp_path: Path) -> None:
    for row in range(3):
        (tmp_path / f"{row}.jpg").touch()
    header = ",".join(f"label {number}" for number in range(columns))
    rows = [f"{row}.jpg," + ",".join("01"[(row + number) % 2] for number in range(columns)) for row in range(3)]
    (tmp_path / "wide.csv").write_text("\n".join([f"image,{header}", *rows]))
    begun = time.process_time()
    table = open_data(tmp_path / "wide.csv")
    assert time.process_time() - begun < columns / 8_000  # it was 17 s for 40,000
    assert table.positives_per_label().sum() == 3 * columns // 2
    with pytest.raises(LabelwiseError, match="did you mean 'label 7'") as caught:
        open_data(tmp_path / "wide.csv", label_columns="labell 7")
    assert len(str(caught.value)) < 10_000


def _coded(text: str, rows: int) -> Any:
    import numpy as np
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), pyarrow.array([text]))


@pytest.mark.parametrize("kind", ["texts", "lists", "rows", pytest.param("one long list", marks=pytest.mark.slow)])
def test_parquet_that_unpacks_to_gigabytes_is_refused(kind: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = 100_000
    if kind == "texts":
        columns = {"image": _coded("1.jpg", rows), "labels": _coded("x" * 65_536, rows)}
    elif kind == "lists":
        lists = pyarrow.ListArray.from_arrays(
            pyarrow.array(range(rows + 1), pyarrow.int32()), _coded("x" * 65_536, rows)
        )
        columns = {"image": _coded("1.jpg", rows), "labels": lists}
    elif kind == "rows":
        columns = {"image": _coded("1.jpg", 21_000_000), "labels": _coded("cat", 21_000_000)}
    else:
        long = pyarrow.ListArray.from_arrays(pyarrow.array([0, 40_000_000], pyarrow.int32()), _coded("cat", 40_000_000))
        columns = {"image": ["1.jpg"], "labels": long}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 1_000_000
    del columns
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LabelwiseError, match=r"rows, 20,000,000 are allowed|'labels' holds more than 1 GB"):
        open_data(tmp_path / "t.parquet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def test_parquet_columns_that_nobody_needs_are_not_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    (tmp_path / "1.jpg").touch()
    rows = 20_000  # of captions, more than a gigabyte
    columns = {"image": ["1.jpg"] * rows, "labels": [["cat"]] * rows, "caption": _coded("x" * 65_536, rows)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert open_data(tmp_path / "t.parquet").labels == ("cat",)


@pytest.mark.parametrize(
    "content",
    [
        '[{"data": {"image": "a.jpg"}, "annotations": [{"result": null}]}]',
        '[{"data": {"image": "a.jpg"}, "annotations": [5]}]',
        '[{"annotations": [{"result": [{"value": {"choices": ["cat"]}}]}]}]',
        '{"classes": 5, "labels": {"a": 3}}',
        '{"samples": [{"filepath": "a.jpg", "tags": 5}]}',
    ],
)
def test_exports_of_another_form_are_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(LabelwiseError) as told:
        open_data(tmp_path / "export.json")
    assert "\n" not in str(told.value)


def test_an_address_that_is_none_is_a_missing_image(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_text("image,labels\nhttp://[bad/x.jpg,cat\n")
    with pytest.raises(LabelwiseError):
        open_data(tmp_path / "photos.csv")


def test_a_pipe_among_photos_with_keywords_is_damaged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    with pytest.raises(LabelwiseError, match="not a regular file"):
        open_data(f"keywords:{tmp_path}")
