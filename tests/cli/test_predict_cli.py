"""`labelwise predict` and `labelwise explain`, in this process and in real ones."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

from labelwise.cli import main
from labelwise.cli.explain import explain
from labelwise.cli.predict import predict
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data
from labelwise.engines.load import load
from labelwise.model.model import create_model
from tests import fork_server
from tests.fork_server import Command

LABELS = ("boat", "car", "hot dog", "sun")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run/model` with thresholds that let some labels pass and others not, `gap/`, and ten pictures."""
    root = tmp_path_factory.mktemp("cli")
    images = make_sample(root / "sample", images=10, size=48).images
    torch.manual_seed(0)
    model = create_model("test_resnet", "hsq", LABELS, weights="none", size=32, dim=16)
    model.save(root / "run")
    scores = load(root / "run").predict(images[0])[0].all_scores
    limits = {"boat": 0.9 * scores["boat"], "car": 0.5 * scores["car"]}
    limits |= {"hot dog": 1.25 * scores["hot dog"], "sun": 1.0}  # a near miss, and nowhere near
    model.config = model.config.model_copy(update={"thresholds": tuple(min(limits[name], 1.0) for name in LABELS)})
    model.save(root / "run")
    create_model("test_resnet", "gap", LABELS, weights="none", size=32).save(root / "gap")
    return root


def test_a_real_process_prints_writes_csv_and_json_and_skips(labelwise: Command, folder: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name in ("00000", "00001"):
        (pictures / f"{name}.jpg").write_bytes((folder / "sample" / "images" / f"{name}.jpg").read_bytes())
    (pictures / "bad [1].jpg").write_bytes(b"oops")
    files = ("--csv", tmp_path / "tags.csv", "--json", tmp_path / "new" / "tags.json")
    done = labelwise("predict", folder / "run", pictures, *files)
    assert done.returncode == 0, done.stderr
    assert "skipped: image" in done.stderr
    assert "1 of 3 images skipped" in done.stderr

    expected = load(folder / "run").predict([pictures / "00000.jpg", pictures / "00001.jpg"])
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line, prediction in zip(lines, expected, strict=True):
        said = [f"{label} {score:.2f}" for label, score in zip(prediction.labels, prediction.scores, strict=True)]
        assert line.startswith("   ".join([str(prediction.image), *said]))
    limit = expected[0].thresholds["hot dog"]
    assert lines[0].endswith(f"(hot dog {expected[0].all_scores['hot dog']:.2f}, below its threshold {limit:.2f})")

    content = json.loads((tmp_path / "new" / "tags.json").read_text())
    assert [Path(entry["image"]).name for entry in content] == ["00000.jpg", "00001.jpg", "bad [1].jpg"]
    assert content[0]["all_scores"] == pytest.approx(expected[0].all_scores, abs=1e-5)
    assert list(content[0]["labels"]) == expected[0].labels
    assert "not an image" in content[2]["error"]

    rows = list(csv.DictReader((tmp_path / "tags.csv").open()))
    assert list(rows[0]) == ["image", "labels", "scores"]
    assert [float(score) for score in rows[0]["scores"].split("|")] == pytest.approx(expected[0].scores, abs=1e-4)
    table = open_data(f"{tmp_path / 'tags.csv'}?separator=|")
    assert [table.present(row) for row in range(2)] == [sorted(p.labels) for p in expected]


def test_a_broken_picture_is_one_line_and_exit_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"oops")
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(folder / "run"), str(tmp_path / "bad.jpg")])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert said.err.startswith("error: image ")
    assert said.err.endswith("bad.jpg' cannot be decoded (not an image of a known format)\n")
    assert said.err.count("\n") == 1


def test_one_bad_file_does_not_stop_a_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named and counted, also where it comes first; what stops is a folder of nothing else, or --strict."""
    for name in ("0", "2"):
        (tmp_path / f"{name}.jpg").write_bytes(b"oops")
    only_bad = ["predict", str(folder / "run"), str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        main(only_bad)
    told = capsys.readouterr()
    assert stopped.value.code == 2
    assert re.fullmatch(r"error: none of the 2 images can be decoded; the first: image '.*0.jpg' .*\n", told.err)
    shutil.copy(folder / "sample" / "images" / "00000.jpg", tmp_path / "1.jpg")
    predict(*only_bad[1:], csv=tmp_path / "tags.csv")
    told = capsys.readouterr()
    assert [Path(line.split()[0]).name for line in told.out.splitlines()] == ["1.jpg"]
    assert [Path(line.split("'")[1]).name for line in told.err.splitlines()[:2]] == ["0.jpg", "2.jpg"]
    assert told.err.endswith("2 of 3 images skipped\n")
    predict(*only_bad[1:], csv=tmp_path / "tags.csv", resume=True)  # only bad ones are left: nothing new
    assert "1 of 3 images done already" in capsys.readouterr().err
    for strict in (["--strict"], ["--on-bad-image", "error"]):
        with pytest.raises(SystemExit):
            main([*only_bad, *strict])
        assert capsys.readouterr().err.endswith("fix it, or skip bad images (--on-bad-image skip)\n")


def test_a_terminal_sees_a_bar_and_a_pipe_gets_whole_lines(folder: Path) -> None:
    """stderr is a terminal, stdout is a pipe: the bar must not swallow the lines."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = fork_server.start(
        "-m", "labelwise", "predict", folder / "run", folder / "sample", stderr=theirs, env=environment
    )
    os.close(theirs)
    with ThreadPoolExecutor(1) as pool:  # a terminal's buffer is small: somebody has to read it
        reading = pool.submit(_read_to_the_end, ours)
        output, _ = process.communicate(timeout=300)
        seen = reading.result()
    assert process.returncode == 0
    assert len(output.splitlines()) == 10
    assert all(".jpg   " in line for line in output.splitlines())
    assert "Predicting" in seen
    assert ".jpg" not in seen


def _read_to_the_end(terminal: int) -> str:
    seen = b""
    with open(terminal, "rb", buffering=0) as file:
        try:
            while chunk := file.read(4096):
                seen += chunk
        except OSError:  # how Linux says that the other side has closed a terminal
            pass
    return seen.decode()


def test_top_and_threshold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = folder / "sample" / "images" / "00000.jpg"
    scores = load(folder / "run").predict(image)[0].all_scores
    predict(str(folder / "run"), str(image), top=3)
    best = [f"{label} {score:.2f}" for label, score in scores.items()]
    assert capsys.readouterr().out == "   ".join([str(image), *best[:3]]) + "\n"
    between = sum(list(scores.values())[1:3]) / 2  # between the second and the third
    predict(str(folder / "run"), str(image), top=3, threshold=between)
    assert capsys.readouterr().out == "   ".join([str(image), *best[:2]]) + "\n"
    predict(str(folder / "run"), str(image), threshold=1.0)
    out = capsys.readouterr().out
    assert "no label   (" in out
    assert best[0] in out
    with pytest.raises(LabelwiseError, match="top must be 1 or more"):
        predict(str(folder / "run"), str(image), top=0)
    with pytest.raises(LabelwiseError, match="no such file or folder"):
        predict(str(folder / "run"), str(folder / "nowhere"))


def test_nothing_that_is_read_is_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photo = tmp_path / "photo.jpg"
    Image.new("RGB", (40, 40)).save(photo)
    paths = tmp_path / "paths.txt"
    paths.write_text("photo.jpg\n")
    before = {file: file.read_bytes() for file in (photo, paths)}
    for words, message in (
        (["--from-file", "paths.txt", "--csv", "./paths.txt"], "'paths.txt' is an input"),
        (["photo.jpg", "--csv", "other.JPG"], "is the name of an image"),
        (["photo.jpg", "--json", "photo.jpg"], "is the name of an image"),
        (["photo.jpg", "--csv", "tags", "--json", "tags"], "is already the json file"),
    ):
        with pytest.raises(SystemExit):
            main(["predict", str(folder / "run"), *words])
        assert message in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before
    assert not (tmp_path / "tags").exists()


def test_an_interrupted_json_file_is_complete(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"oops")
    good = folder / "sample" / "images" / "00000.jpg"
    files = (str(good), str(tmp_path / "bad.jpg"))
    with pytest.raises(LabelwiseError, match="cannot be decoded"):
        predict(str(folder / "run"), *files, json=tmp_path / "x.json", batch_size=1, strict=True)
    assert [entry["image"] for entry in json.loads((tmp_path / "x.json").read_text())] == [str(good)]
    with pytest.raises(LabelwiseError, match="cannot be decoded"):
        predict(str(folder / "run"), str(tmp_path / "bad.jpg"), json=tmp_path / "y.json")
    assert json.loads((tmp_path / "y.json").read_text()) == []


def test_explain_draws_and_says_what(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = folder / "sample" / "images" / "00000.jpg"
    explain(str(folder / "run"), str(image), out=tmp_path / "new" / "why.png", top=2)
    best = list(load(folder / "run").predict(image)[0].all_scores)[:2]
    assert capsys.readouterr().out.strip() == f"{tmp_path / 'new' / 'why.png'}: {', '.join(best)}"
    two = Image.open(tmp_path / "new" / "why.png")
    assert two.format == "PNG"
    explain(str(folder / "run"), str(image), out=tmp_path / "one.png", labels="hot dog")
    assert Image.open(tmp_path / "one.png").width < two.width  # fewer panels
    with pytest.raises(LabelwiseError, match="did you mean 'boat'"):
        explain(str(folder / "run"), str(image), out=tmp_path / "x.png", labels="boot")
    with pytest.raises(LabelwiseError, match="'gap' has no attention"):
        explain(str(folder / "gap"), str(image), out=tmp_path / "x.png", method="attention")
    with pytest.raises(LabelwiseError, match=r"\.jpg, \.pdf or \.svg"):
        explain(str(folder / "run"), str(image), out=tmp_path / "x.txt")
    with pytest.raises(LabelwiseError, match="is a folder"):
        explain(str(folder / "run"), str(image.parent), out=tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
