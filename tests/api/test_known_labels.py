"""Labels that are known change the others: a C-Tran trained on drawn images, in Python, by commands, exported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import known_labels
import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.runtime.tagger import Tagger
from tests.fork_server import Command

LABELS = ("bat", "net", "sun")  # a bat comes with a net, always and only; no image shows either


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that are bright if the sun shines, and say nothing else."""
    folder = tmp_path_factory.mktemp("known")
    rows = ["image,labels,split"]
    for number in range(48):
        bat, sun = number % 2, number // 2 % 2
        Image.new("RGB", (32, 32), (200, 220, 240) if sun else (20, 30, 60)).save(folder / f"{number}.png")
        names = ["bat", "net"] * bat + ["sun"] * sun
        rows.append(f"{number}.png,{'|'.join(names)},{'train' if number < 40 else 'val'}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        lw.train(
            data / "labels.csv",
            out=folder / "run",
            head="c-tran",
            backbone="test_resnet",
            weights="none",
            size=64,
            epochs=30,
            batch_size=8,
            lr=1e-2,
            loss="bce",
            **{"head.dim": 16, "head.encoder_layers": 2, "head.dropout": 0, "data.validation": None},
            precision="32-true",
            freeze="backbone",
            workers=0,
        )
    return folder / "run"


@pytest.fixture(scope="module")
def tagger(run: Path) -> Tagger:
    return lw.load(run)


def test_knowing_a_label_raises_its_partner(tagger: Tagger, data: Path) -> None:
    (alone,), (there,), (absent,) = (
        tagger.predict(data / "40.png", known=known) for known in (None, {"bat": True}, {"bat": False})
    )
    assert there.all_scores["net"] > alone.all_scores["net"] + 0.15
    assert there.all_scores["net"] > absent.all_scores["net"] + 0.25
    assert absent.all_scores["net"] < alone.all_scores["net"]
    assert abs(there.all_scores["sun"] - alone.all_scores["sun"]) < 0.2  # it has nothing to do with the bat
    assert (there.all_scores["bat"], absent.all_scores["bat"]) == (1, 0)


def test_known_labels_are_checked(tagger: Tagger, data: Path) -> None:
    with pytest.raises(LabelwiseError, match="unknown label 'bet'; did you mean 'net'"):
        tagger.predict(data / "40.png", known={"bet": True})
    with pytest.raises(LabelwiseError, match="unknown label '1'"):
        tagger.predict(data / "40.png", known={1: True})  # type: ignore[dict-item]
    for value in (None, "no", float("nan"), -1, 0.3, np.array([1, 0])):
        with pytest.raises(LabelwiseError, match=r"known label 'bat': .* is neither True \(there\) nor False"):
            tagger.predict(data / "40.png", known={"bat": value})  # type: ignore[dict-item]
    (told,) = tagger.predict(data / "40.png", known={"bat": True})
    for there in (np.True_, 1.0, torch.tensor(True)):
        (same,) = tagger.predict(data / "40.png", known={"bat": there})  # type: ignore[dict-item]
        assert same.all_scores == told.all_scores
    with pytest.raises(LabelwiseError, match="given with whether they are there"):
        tagger.predict(data / "40.png", known=["bat"])  # type: ignore[arg-type]
    cannot = Tagger(lw.create_model("test_resnet", "gap", LABELS, weights="none", size=32))
    with pytest.raises(LabelwiseError, match="cannot use known labels; leave them out, or train a head that can"):
        lw.predict(data / "40.png", cannot, known={"bat": True})
    one = Tagger(lw.create_model("test_resnet", "c-tran", LABELS, weights="none", size=32, dim=8, task="single-label"))
    with pytest.raises(LabelwiseError, match="a single-label model has one label to find"):
        one.predict(data / "40.png", known={"bat": True})


def test_the_maps_are_those_of_the_known_labels(tagger: Tagger, data: Path) -> None:
    maps = [tagger.predict(data / "40.png", known=known)[0].attention("net") for known in (None, {"bat": True})]
    assert not np.allclose(*maps, atol=1e-4)


def test_explanations_know_them(tagger: Tagger, data: Path) -> None:
    explanation = lw.explain(data / "40.png", tagger, known={"bat": True}, top=2)
    (expected,) = tagger.predict(data / "40.png", known={"bat": True})
    assert "bat" not in explanation.maps  # the best of the labels that were not told
    assert explanation.prediction.all_scores == expected.all_scores
    for label, values in explanation.maps.items():
        np.testing.assert_allclose(values, expected.attention(label), atol=1e-6)
    cams = [
        lw.explain(data / "42.png", tagger, known=known, labels=LABELS, method="grad-cam").maps.values()
        for known in (None, {"bat": True})
    ]
    assert not np.allclose(*map(list, cams), atol=1e-4)
    with pytest.raises(LabelwiseError, match="unknown label 'bet'; did you mean 'net'"):
        lw.explain(data / "40.png", tagger, known={"bet": True})


def test_on_the_command_line(run: Path, data: Path, tmp_path: Path, labelwise: Command) -> None:
    flags = ["--known", "bat", "--known-absent", "sun", "--json", "tags.json"]
    done = labelwise("predict", run, data / "40.png", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bat 1.00" in done.stdout
    (written,) = json.loads((tmp_path / "tags.json").read_text())
    expected = lw.predict(data / "40.png", run, known={"bat": True, "sun": False})[0].all_scores
    assert written["all_scores"] == pytest.approx(expected, abs=1e-5)
    twice = labelwise("predict", run, data / "40.png", "--known", "bat", "--known-absent", "bat", cwd=tmp_path)
    assert twice.stderr.strip() == "error: 'bat' cannot be known to be there and to be absent; name it once"
    drawn = labelwise("explain", run, data / "40.png", "--known", "bat", "--top", "2", "--out", "why.png", cwd=tmp_path)
    assert set(drawn.stdout.strip().removeprefix("why.png: ").split(", ")) == {"net", "sun"}, drawn.stderr
    bundled = labelwise("predict", data / "40.png", "--known", "person", cwd=tmp_path)
    assert "cannot use known labels" in bundled.stderr
    assert "--head c-tran" in bundled.stderr


def test_in_a_large_job(run: Path, data: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    images = [str(data / "40.png"), str(data / "41.png")]
    lw.predict_job(images, run, out=tmp_path / "tags", known={"bat": True}, all_scores=True, engine="torch")
    rows = parquet.read_table(tmp_path / "tags").to_pylist()
    expected = lw.load(run, engine="torch").predict(images, known={"bat": True})
    for row, prediction in zip(rows, expected, strict=True):
        assert dict(zip(LABELS, row["all_scores"], strict=True)) == pytest.approx(prediction.all_scores, abs=1e-5)
    with pytest.raises(LabelwiseError, match=r"its known is \{'bat': True\}, now it is"):
        lw.predict_job(images, run, out=tmp_path / "tags", known={"bat": False}, all_scores=True, engine="torch")
    with pytest.raises(LabelwiseError, match="unknown label 'bet'"):
        lw.predict_job(images, run, out=tmp_path / "other", known={"bet": True})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("format", ["onnx", "openvino", "int8"])
def test_exported_models_take_known_labels(run: Path, data: Path, tagger: Tagger, tmp_path: Path, format: str) -> None:
    options = (
        {"int8": True, "calibration": data / "labels.csv", "max_loss": 100.0}
        if format == "int8"
        else {"format": format}
    )
    lw.export(run, out=tmp_path / "exported", **options)
    exported = lw.load(tmp_path / "exported")
    for known in (None, {"bat": True}, {"bat": False, "sun": True}):
        (found,), (expected,) = (each.predict(data / "41.png", known=known) for each in (exported, tagger))
        assert found.all_scores == pytest.approx(expected.all_scores, abs=0.1 if format == "int8" else 1e-4)
        assert np.allclose(found.attention("net"), expected.attention("net"), atol=0.05 if format == "int8" else 1e-4)


def test_what_knowing_a_share_of_the_labels_is_worth(run: Path) -> None:
    """benchmarks/known_labels.py: only who knows the bat can tell whether there is a net."""
    rows = known_labels.measure(lw.Run(run), "val")
    assert [row["share"] for row in rows] == [*known_labels.SHARES]
    half = rows[2]
    assert half["told"] > half["not_told"] + 3
    again = known_labels.summary([rows, rows])
    assert again[2]["gain"] == pytest.approx(half["told"] - half["not_told"])
    assert again[2]["gain_sd"] == 0
