"""JSON, JSON Lines and CSV that are cut off at any byte are continued to what an undisturbed run writes."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelwise.api.prediction_files import CsvWriter, JsonWriter
from labelwise.cli.predict import predict
from labelwise.core.errors import LabelwiseError
from labelwise.data.manifests import relative_path
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data
from labelwise.model.model import create_model
from labelwise.runtime.prediction import Prediction, TaggerConfig
from tests import fork_server

LABELS = ("cat", 'a "dog"', "böat")
IMAGES = ["a.jpg", 'b, "c".jpg', "line\nend.jpg", "ünï.jpg", os.fsdecode(b"latin-\xe9.jpg"), "a.jpg", "broken.jpg"]


def predictions() -> list[Prediction]:
    config = TaggerConfig(labels=LABELS, preprocessing=Preprocessing())
    scores = np.random.default_rng(0).random((len(IMAGES), len(LABELS)))
    made = [Prediction(config, image, row) for image, row in zip(IMAGES, scores, strict=True)]
    return [*made[:-1], Prediction(config, IMAGES[-1], None, "cannot be decoded")]


def write(writer: JsonWriter | CsvWriter) -> list[str]:
    """What a run does; gives the pictures that were still wanted."""
    wanted = [prediction for prediction in predictions() if writer.wants(str(prediction.image))]
    for prediction in wanted:
        writer.write(prediction, prediction.choose())
    writer.close()
    return [str(prediction.image) for prediction in wanted]


@pytest.mark.parametrize(
    ("made", "writer", "foreign"),
    [
        ("tags.csv", CsvWriter, "image,labels\na.jpg,cat\n"),
        ("tags.json", JsonWriter, '{"images": []}'),
        ("tags.jsonl", JsonWriter, '{"name": "a.jpg"}\n'),
    ],
)
def test_only_what_predictions_wrote_is_replaced(made: str, writer: Any, foreign: str, tmp_path: Path) -> None:
    """`--csv photos.csv` may be meant to say which table to read."""
    path = tmp_path / made
    for _ in range(2):
        write(writer(path, LABELS))
    writer(path, LABELS).close()  # no image at all
    write(writer(path, LABELS))
    path.write_text(foreign)
    with pytest.raises(LabelwiseError, match="was not written by labelwise"):
        writer(path, LABELS)
    assert path.read_text() == foreign


def test_labels_corrected_by_hand_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tags.csv"
    write(CsvWriter(path, LABELS))
    first, *_ = LABELS
    written = path.read_text(errors="surrogateescape")
    path.write_text(corrected := written.replace(f",{first}", ",", 1), errors="surrogateescape")
    assert corrected != written
    with pytest.raises(
        LabelwiseError, match="holds labels that were added or removed by hand, and is not replaced"
    ) as told:
        CsvWriter(path, LABELS)
    assert told.value.options == {"resume": True}
    assert path.read_text(errors="surrogateescape") == corrected
    with pytest.raises(LabelwiseError, match=r"separated by commas, not by tabs as in .*tags\.tsv"):
        CsvWriter(tmp_path / "tags.tsv", LABELS)


@pytest.mark.parametrize("writer", [CsvWriter, JsonWriter])
def test_a_pipe_is_written_to_and_never_read(writer: Any, tmp_path: Path) -> None:
    """`--csv /dev/stdout`: to open a pipe for reading would wait for ever."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        write(writer(pipe, LABELS))
        assert b"a.jpg" in read.result(timeout=10)


@pytest.mark.parametrize("label", ["hot dog", "sofa; red", "chair, wooden"])
def test_a_csv_of_one_label_each_is_read_back_as_it_was_meant(label: str, tmp_path: Path) -> None:
    config = TaggerConfig(labels=(label, "cat"), preprocessing=Preprocessing())
    writer = CsvWriter(tmp_path / "tags.csv", config.labels)
    for number in range(4):
        prediction = Prediction(config, f"{number}.jpg", np.array([0.9, 0.1]))
        writer.write(prediction, prediction.choose())
    writer.close()
    table = open_data(tmp_path / "tags.csv", check_files="no")
    assert table.labels == (label,)
    assert table.targets().tolist() == [[1]] * 4


@pytest.mark.parametrize(
    ("kind", "name"), [(JsonWriter, "tags.json"), (JsonWriter, "tags.jsonl"), (CsvWriter, "tags.csv")]
)
def test_a_file_cut_anywhere_is_continued_to_the_same_bytes(kind: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert write(kind(path, LABELS)) == IMAGES
    whole = path.read_bytes()
    left = []
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        left.append(len(write(kind(path, LABELS, resume=True))))
        assert path.read_bytes() == whole, f"cut at {cut}: {whole[:cut]!r}"
    # Nothing is there at the start; at the end only what a CSV has no row for.
    assert (left[0], left[-1]) == (len(IMAGES), 1 if kind is CsvWriter else 0)
    assert left == sorted(left, reverse=True)
    path.unlink()
    assert write(kind(path, LABELS, resume=True)) == IMAGES  # nothing to go on with: from the start
    assert path.read_bytes() == whole


def test_every_file_says_the_same(tmp_path: Path) -> None:
    for name, kind in (("x.json", JsonWriter), ("x.jsonl", JsonWriter), ("x.csv", CsvWriter)):
        write(kind(tmp_path / name, LABELS))
    entries = json.loads((tmp_path / "x.json").read_text())
    assert [entry["image"] for entry in entries] == IMAGES  # the name that is not UTF-8, too
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == entries
    assert "error" in entries[-1]
    assert "labels" not in entries[-1]
    with (tmp_path / "x.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [os.path.normpath(tmp_path / row["image"]) for row in rows] == [os.path.abspath(i) for i in IMAGES[:-1]]
    for row, entry in zip(rows, entries, strict=False):
        assert [name for name in row["labels"].split("|") if name] == list(entry["labels"])


@pytest.mark.parametrize("kind", [JsonWriter, CsvWriter])
def test_files_of_others_are_not_continued(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    for foreign in ('{\n "a": 1\n}\n', '["a"]\n', '[{"image": 1}]\n', '{"path": "x"}\n', "name,age\nx,3\n", "hello\n"):
        path.write_text(foreign)
        with pytest.raises(LabelwiseError, match="not written by labelwise"):
            kind(path, LABELS, resume=True)
        assert path.read_text() == foreign
    path.unlink()
    write(kind(path, LABELS))
    with pytest.raises(LabelwiseError, match="other labels"):
        kind(path, ("apple", "pear"), resume=True)


def test_a_killed_process_is_resumed_to_what_an_undisturbed_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_sample(tmp_path / "sample", images=300, size=32)
    torch.manual_seed(0)
    create_model("test_resnet", "csra", ("boat", "car"), weights="none", size=32).save(tmp_path / "model")
    predict("model", "sample", json=Path("whole.jsonl"), csv=Path("whole.csv"), batch_size=4, engine="torch")
    capsys.readouterr()

    options = ["--json", "x.jsonl", "--csv", "x.csv", "--batch-size", "4", "--engine", "torch"]
    process = fork_server.start("-m", "labelwise", "predict", "model", "sample", *options)
    deadline = time.monotonic() + 240
    while not Path("x.jsonl").exists() or Path("x.jsonl").read_bytes().count(b"\n") < 10:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    there = Path("x.jsonl").read_bytes().count(b"\n")
    assert 10 <= there < 300
    with Path("x.csv").open("ab") as file:
        file.write(b"sample/images/000")  # and a row that the disk has only half of
    predict("model", "sample", json=Path("x.jsonl"), csv=Path("x.csv"), batch_size=4, engine="torch", resume=True)
    said = capsys.readouterr()
    assert "of 300 images done already" in said.err
    assert len(said.out.splitlines()) <= 300 - there + 1
    # Other batches, other last digits: the numbers of both runs agree to what a CSV shows.
    assert Path("x.csv").read_text() == Path("whole.csv").read_text()
    found, expected = (
        [json.loads(line) for line in Path(f).read_text().splitlines()] for f in ("x.jsonl", "whole.jsonl")
    )
    assert [entry["image"] for entry in found] == [entry["image"] for entry in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["all_scores"] == pytest.approx(other["all_scores"], abs=1e-6)
    predict("model", "sample", json=Path("x.jsonl"), csv=Path("x.csv"), resume=True)
    assert capsys.readouterr().out == ""  # nothing left to do


def test_resume_without_a_file_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="no file to resume"):
        predict("owner/name", str(tmp_path), resume=True)


def test_paths_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that changes its folder: `here.csv` is another file then, and paths are relative to its folder."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert relative_path("images/a.jpg", Path("here.csv").parent) == os.path.join("images", "a.jpg")
