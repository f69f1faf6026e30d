"""Labels in words from start to end: predict and evaluate untrained, train prompts, export.

Commands run in this process, where open_clip is imported already: that takes seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import labelwise as lw
from labelwise.cli import main
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data
from labelwise.model.towers import attach_text_tower, text_tower

pytest.importorskip("open_clip")
towers = pytest.importorskip("tests.towers")

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "text-aligned" / "voc-dualcoop.yaml"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    make_sample(folder, images=30, size=48)
    towers.write_tower(folder / "tower", towers.CONFIGS["siglip"])
    return folder


def run(*words: str) -> object:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return ended.value.code


def test_before_any_training(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(here)
    image = "images/00003.jpg"
    assert run("predict", "clip:tower", image, "--labels", "harbour, dog, boat", "--top", "2") == 0
    printed = capsys.readouterr().out
    scores = lw.load(f"clip:{here / 'tower'}", labels=["harbour", "dog", "boat"]).predict(image)[0].all_scores
    for label in sorted(scores, key=lambda name: -scores[name])[:2]:
        assert f"{label} {scores[label]:.2f}" in printed
    assert run("predict", "clip:tower", image) == 2
    assert "error: 'clip:tower' has no labels of its own; name them (--labels …)" in capsys.readouterr().err
    options = {"split": "test", "bootstrap": 0, "progress": False}
    evaluation = lw.evaluate(f"clip:{here / 'tower'}", here / "labels.csv", **options)
    assert list(evaluation.to_pandas().index) == list(open_data(here / "labels.csv").labels)
    with pytest.raises(LabelwiseError, match=r"labels\)\.save\(FOLDER\) makes a model folder"):
        lw.export(f"clip:{here / 'tower'}", out=here / "onnx")


def test_prompts_are_trained_and_exported(here: Path, tmp_path: Path) -> None:
    tower = {"backbone": f"clip:{here / 'tower'}", "head": "text-aligned"}
    assert lw.estimate(here / "labels.csv", **tower).labels == 13
    settings = [f"--data={here / 'labels.csv'}", *(f"--{name}={value}" for name, value in tower.items())]
    assert run("train", *settings, f"--out={tmp_path / 'run'}", "--epochs=2", "--set=head.patch_weight=0.3") == 0
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


def test_contexts_are_trained_through_the_text_tower(here: Path, tmp_path: Path) -> None:
    """DualCoOp's recipe on a small tower, with averaged weights and a refit: only prompts and calibration move."""
    changes = {
        "data.train": "train",
        "data.validation": "val",
        "head.context": 3,
        "ema": 0.5,
        "refit": 0.5,
        "workers": 0,
    }
    options = {**changes, "backbone": f"clip:{here / 'tower'}", "epochs": 2}
    model = lw.train(here / "labels.csv", out=tmp_path / "run", recipe=RECIPE, **options).model()
    head = model.config.head.model_dump(exclude={"kind"})
    before = lw.create_model(f"clip:{here / 'tower'}", "text-aligned", model.labels, **head)
    moved = {n for n, tensor in before.head.state_dict().items() if not tensor.equal(model.head.state_dict()[n])}
    texts = {"context", "negative_context", "word_vectors", "negative"}
    assert moved == texts | {"patch_weight", "logit_scale", "logit_bias"}
    attach_text_tower(model.head, text_tower(model.head.config, model.config.words, model.labels))
    assert (tmp_path / "run" / "refit").is_dir()
    saved = model.head.word_vectors
    model.head.settle()  # what was saved is what the saved contexts lead to
    torch.testing.assert_close(saved, model.head.word_vectors, atol=1e-5, rtol=1e-5)


def test_other_backbones_need_a_word_source(here: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="this head needs word vectors"):
        lw.train(here / "labels.csv", out=tmp_path / "run", head="text-aligned")


def test_prompts_that_cannot_be_trained_are_refused_at_once(here: Path, tmp_path: Path) -> None:
    options = {"out": tmp_path / "run", "head": "text-aligned", "head.prompts": "coop"}
    with pytest.raises(LabelwiseError, match="through the text tower of CLIP or SigLIP"):
        lw.train(here / "labels.csv", **options, **{"model.words": "package:glove-50d"})
    with pytest.raises(LabelwiseError, match=r"cannot be sharded.*\(strategy='ddp'\)"):
        lw.train(here / "labels.csv", **options, backbone=f"clip:{here / 'tower'}", strategy="fsdp")
