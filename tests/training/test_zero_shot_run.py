"""Training on seen labels, measuring on unseen ones: these never reach the training, and the numbers are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import average_precision_score

import labelwise as lw
from labelwise.cli import main
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import SAMPLE_LABELS, make_sample
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import predict_logits
from labelwise.training import Recipe, load_recipe
from labelwise.training.display import Display
from labelwise.training.recipe import DataRecipe
from labelwise.training.tables import usable_part
from labelwise.training.train import train

UNSEEN = ("fish", "tree")
HEADS: dict[str, dict[str, Any]] = {
    "ml-decoder": {
        "dim": 16,
        "attention_heads": 2,
        "feedforward": 32,
        "groups": None,
        "queries": "words",
        "classifier": "shared",
    },
    "conse": {},
    "fast0tag": {},
    "lesa": {},
    "sdl": {},
}
RANKING = ("fast0tag", "lesa", "sdl")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample set, word vectors of its labels, and a list of unseen labels."""
    folder = tmp_path_factory.mktemp("zero-shot")
    make_sample(folder, images=60, size=48)
    vectors = torch.randn(len(SAMPLE_LABELS), 8, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(SAMPLE_LABELS, vectors.unbind(), strict=True)), folder / "words.safetensors")
    (folder / "unseen.txt").write_text("\n".join(UNSEEN) + "\n\n")
    return folder


def recipe(here: Path, head: str = "ml-decoder", **changes: Any) -> Recipe:
    small = {
        "data.source": str(here / "labels.csv"),
        "data.unseen": str(here / "unseen.txt"),
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.head": head,
        "model.options": HEADS[head],
        "model.words": str(here / "words.safetensors"),
        "loss.name": "ranking" if head in RANKING else "bce",
        "epochs": 1,
        "batch_size": 8,
        "workers": 0,
    }
    return load_recipe(None, small | changes)


def run_command(*arguments: str) -> int:
    """The exit status of `labelwise …`, in this process: a new one takes seconds to import PyTorch."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_a_file_of_labels_becomes_names_in_the_saved_recipe(here: Path) -> None:
    assert recipe(here).data.unseen == UNSEEN
    assert recipe(here, **{"data.unseen": "fish, tree"}).data.unseen == UNSEEN
    with pytest.raises(LabelwiseError, match=r"no list of labels 'nowhere.txt'"):
        recipe(here, **{"data.unseen": "nowhere.txt"})


@pytest.mark.parametrize("head", HEADS)
def test_training_knows_nothing_of_unseen_labels(head: str, here: Path, tmp_path: Path) -> None:
    """The same run on a copy of the data in which the unseen labels were never annotated gives the same weights."""
    train(recipe(here, head), tmp_path / "a")
    hidden = open_data(here / "labels.csv")
    seen = [name for name in hidden.labels if name not in UNSEEN]
    rows = ["image,split,labels"]
    for row in np.flatnonzero(~hidden.with_labels(UNSEEN).has_positive()):
        rows.append(f"{hidden.images[row]},{hidden.splits[row]},{'|'.join(hidden.present(row))}")
    (tmp_path / "seen.csv").write_text("\n".join(rows) + "\n")
    without = {"data.source": str(tmp_path / "seen.csv"), "data.unseen": None, "data.labels": seen}
    train(recipe(here, head, **without), tmp_path / "b")
    first, second = (load_file(tmp_path / run / "model" / "model.safetensors") for run in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    configs = [json.loads((tmp_path / run / "model" / "config.json").read_text()) for run in "ab"]
    assert configs[0]["thresholds"] == configs[1]["thresholds"]
    assert configs[0]["labels"] == seen


@pytest.mark.parametrize("head", HEADS)
def test_evaluate_measures_unseen_and_all_labels(
    head: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`labelwise evaluate` finds the unseen labels in the run; its numbers are scikit-learn's and a literal loop's."""
    train(recipe(here, head), tmp_path / "run")
    data = str(here / "labels.csv")
    arguments = [str(tmp_path / "run"), "--data", data, "--split", "all", "--workers", "0", "--bootstrap", "20"]
    assert run_command("evaluate", *arguments, "--as", "nus-wide-zsl", "--json", str(tmp_path / "out.json")) == 0
    shown = capsys.readouterr().out
    assert "2 unseen" in shown
    assert "F1 at 3" in shown
    result = json.loads((tmp_path / "out.json").read_text())

    model = lw.load_model(tmp_path / "run")
    labels = (*model.labels, *UNSEEN)
    table = open_data(data).with_labels(labels)
    logits = predict_logits(model.with_labels(labels), table, workers=0).logits
    targets = table.targets()
    for part, columns in (("zsl", slice(len(model.labels), None)), ("gzsl", slice(None))):
        scores, truth = logits[:, columns], targets[:, columns]
        precisions = [average_precision_score(t, s) for t, s in zip(truth.T, scores.T, strict=True) if t.any()]
        assert result[part]["mAP"] == pytest.approx(100 * np.mean(precisions), abs=1e-4)
        assert result[part]["chance"]["mAP"] == pytest.approx(100 * truth[:, truth.any(0)].mean(), abs=1e-6)
        for k in (1, 3, 5):
            hits = predicted = 0
            for row, present in zip(scores, truth, strict=True):
                best = sorted(range(len(row)), key=lambda i: -row[i])[:k]
                hits, predicted = hits + int(present[best].sum()), predicted + len(best)
            precision, recall = hits / predicted, hits / truth.sum()
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            numbers = [result[part][f"{name}_top{k}"] for name in ("OP", "OR", "OF1")]
            assert numbers == pytest.approx([100 * precision, 100 * recall, 100 * f1])
        # As ML-Decoder's code counts: images without a wanted label are left out.
        wanted = truth.any(axis=1)
        assert wanted.all() == (part == "gzsl")
        precisions = [
            average_precision_score(t[wanted], s[wanted]) for t, s in zip(truth.T, scores.T, strict=True) if t.any()
        ]
        assert result["conventions"][f"nus-wide-zsl, {part.upper()}"]["mAP"] == pytest.approx(
            100 * np.mean(precisions), abs=1e-4
        )
    seen = logits[:, : len(model.labels)].astype(np.float64)
    relative = logits[:, len(model.labels) :] - np.log(np.exp(seen).sum(axis=1, keepdims=True))
    truth = targets[:, len(model.labels) :]
    expected = [average_precision_score(t, s) for t, s in zip(truth.T, relative.T, strict=True)]
    assert result["zsl_relative"]["mAP"] == pytest.approx(100 * np.mean(expected), abs=0.05)  # rounding may swap ties
    by_label = {row["label"]: row for row in result["per_label"]}
    assert [name for name, row in by_label.items() if row["unseen"]] == list(UNSEEN)
    assert result["zsl"]["mAP"] == pytest.approx(np.mean([by_label[name]["AP"] for name in UNSEEN]))


@pytest.mark.parametrize(("rule", "kept"), [("drop", [1, 4]), ("keep-labelled", [1, 3, 4]), ("keep", [1, 2, 3, 4])])
def test_which_images_are_trained_on(rule: str, kept: list[int], tmp_path: Path) -> None:
    labels = [["sun"], ["fish"], ["sun", "fish"], []]
    table = LabelTable.from_lists([f"{i}.jpg" for i in (1, 2, 3, 4)], labels, ["fish", "sun", "tree"])
    wanted = DataRecipe.parse({"unseen": ["fish", "tree"], "unseen_images": rule}, "data")
    part = usable_part(table, wanted, Display(tmp_path / "log.txt"))
    assert [int(Path(name).stem) for name in part.images] == kept
    assert part.labels == ("sun",)


def test_images_without_a_label_can_be_left_out(tmp_path: Path) -> None:
    """As in ML-Decoder's code on NUS-WIDE: an image of unseen labels alone has none."""
    labels = [["sun"], ["fish"], ["sun", "fish"], []]
    table = LabelTable.from_lists([f"{i}.jpg" for i in (1, 2, 3, 4)], labels, ["fish", "sun", "tree"])
    display = Display(tmp_path / "log.txt")
    wanted = DataRecipe.parse({"unseen": ["fish", "tree"], "unseen_images": "keep", "empty_images": "drop"}, "data")
    assert [Path(name).stem for name in usable_part(table, wanted, display).images] == ["1", "3"]
    plain = usable_part(table, DataRecipe(empty_images="drop"), display)
    assert [Path(name).stem for name in plain.images] == ["1", "2", "3"]
    with pytest.raises(LabelwiseError, match="all images have no label; keep these images"):
        usable_part(table.with_labels(["tree"]), DataRecipe(empty_images="drop"), display)


def test_wrong_lists_are_named(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabelwiseError, match=r": unknown label 'fisch'; did you mean 'fish'"):
        train(recipe(here, **{"data.unseen": "fisch"}), tmp_path / "a")
    with pytest.raises(LabelwiseError, match="does not say which labels are unseen"):
        train(recipe(here, **{"data.unseen": "data"}), tmp_path / "a")
    with pytest.raises(LabelwiseError, match="all 13 labels are unseen"):
        train(recipe(here, **{"data.unseen": SAMPLE_LABELS}), tmp_path / "a")
    train(recipe(here, "conse"), tmp_path / "run")
    arguments = ["evaluate", str(tmp_path / "run"), "--data", str(here / "labels.csv"), "--workers", "0"]
    for more, message in (
        (["--fit-thresholds", "f1"], "--unseen none"),
        (["--unseen", "house"], "trained on 'house'"),
        (["--unseen", "none"], "does not know: 'fish', 'tree'"),
    ):
        assert run_command(*arguments, *more) == 2
        assert message in capsys.readouterr().err
