"""Labels in words from start to end, in real processes: predict and evaluate untrained, train prompts, export."""

from __future__ import annotations

from pathlib import Path

import pytest

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data
from tests.fork_server import Command

pytest.importorskip("open_clip")
towers = pytest.importorskip("tests.towers")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    make_sample(folder, images=30, size=48)
    towers.write_tower(folder / "tower", towers.CONFIGS["siglip"])
    return folder


def test_before_any_training(labelwise: Command, here: Path) -> None:
    image = here / "images" / "00003.jpg"
    done = labelwise("predict", "clip:tower", image, "--labels", "harbour, dog, boat", "--top", "2", cwd=here)
    assert done.returncode == 0, done.stderr
    scores = lw.load(f"clip:{here / 'tower'}", labels=["harbour", "dog", "boat"]).predict(image)[0].all_scores
    for label in sorted(scores, key=lambda name: -scores[name])[:2]:
        assert f"{label} {scores[label]:.2f}" in done.stdout
    done = labelwise("predict", "clip:tower", image, cwd=here)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "error: 'clip:tower' has no labels of its own; name them (--labels …)",
    )
    options = {"split": "test", "bootstrap": 0, "progress": False}
    evaluation = lw.evaluate(f"clip:{here / 'tower'}", here / "labels.csv", **options)
    assert list(evaluation.to_pandas().index) == list(open_data(here / "labels.csv").labels)
    with pytest.raises(LabelwiseError, match=r"labels\)\.save\(FOLDER\) makes a model folder"):
        lw.export(f"clip:{here / 'tower'}", out=here / "onnx")


def test_prompts_are_trained_and_exported(labelwise: Command, here: Path, tmp_path: Path) -> None:
    tower = {"backbone": f"clip:{here / 'tower'}", "head": "text-aligned"}
    assert lw.estimate(here / "labels.csv", **tower).labels == 13
    settings = ("--data", here / "labels.csv", *(f"--{name}={value}" for name, value in tower.items()))
    done = labelwise("train", *settings, "--out", tmp_path / "run", "--epochs", "2", "--set", "head.patch_weight=0.3")
    assert done.returncode == 0, done.stderr
    model = lw.load_model(tmp_path / "run")
    assert model.config.preprocessing.size == 160  # the tower's own
    assert model.head.residuals.any()
    before = lw.create_model(f"clip:{here / 'tower'}", "text-aligned", model.labels)
    for name, tensor in before.head.state_dict().items():  # only prompts and calibration have moved
        moved = not tensor.equal(model.head.state_dict()[name])
        assert moved == (name in {"residuals", "negative", "patch_weight", "logit_scale", "logit_bias"}), name
    assert lw.export(tmp_path / "run", out=tmp_path / "onnx").about.difference < 1e-4
    image = here / "images" / "00003.jpg"
    exported, own = (lw.load(tmp_path / name).predict(image)[0] for name in ("onnx", "run"))
    assert exported.attention(model.labels[0]).shape == own.attention(model.labels[0]).shape == (10, 10)
    assert lw.load(tmp_path / "run", labels=["harbour", "cat"]).labels == ("harbour", "cat")


def test_other_backbones_need_a_word_source(here: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="this head needs word vectors"):
        lw.train(here / "labels.csv", out=tmp_path / "run", head="text-aligned")
