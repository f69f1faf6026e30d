"""Models: one folder out, the same model back, and nothing that a load could execute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from tests.heads.head_kit import small_options

LABELS = ["cat", "dog", "sofa", "téléphone"]


def small_model(head: str = "hsq", **options: Any) -> lw.LabelModel:
    options = {**small_options(head, len(LABELS)), **options}
    return lw.create_model("test_resnet", head, LABELS, weights="none", size=64, **options).eval()


@pytest.mark.parametrize("head", lw.heads.list_heads())
def test_folder_round_trip(head: str, tmp_path: Path) -> None:
    model, x = small_model(head), torch.randn(2, 3, 64, 64)
    model.save(tmp_path / "m")
    again = lw.load_model(tmp_path / "m")
    assert again.labels == tuple(LABELS)
    assert again.config == model.config
    assert torch.equal(again(x), model(x))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]  # no temporary folder is left


def test_words_and_groups_travel_with_the_model(tmp_path: Path) -> None:
    words = torch.randn(4, 6)
    model = small_model("ml-decoder", groups=2, queries="words", classifier="words", word_vectors=words, group_seed=5)
    model.save(tmp_path / "m")
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(lw.load_model(tmp_path / "m")(x), model(x))


def test_hub_mixin_writes_and_reads_the_same_folder(tmp_path: Path) -> None:
    model, x = small_model(), torch.randn(1, 3, 64, 64)
    model.save_pretrained(tmp_path / "m")
    assert torch.equal(lw.LabelModel.from_pretrained(tmp_path / "m")(x), model(x))
    assert (tmp_path / "m" / "README.md").read_text().count("library_name: labelwise") == 1


def test_a_run_folder_stands_for_its_model(tmp_path: Path) -> None:
    small_model().save(tmp_path / "run" / "model")
    assert lw.load_model(tmp_path / "run").labels == tuple(LABELS)


def test_saving_over_a_model_replaces_it_and_spares_other_folders(tmp_path: Path) -> None:
    small_model("gap").save(tmp_path / "m")
    small_model("csra").save(tmp_path / "m")
    assert lw.load_model(tmp_path / "m").config.head.kind == "csra"
    (tmp_path / "m" / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to("m")
    small_model("gap").save(tmp_path / "link")
    assert lw.load_model(tmp_path / "m").config.head.kind == "gap"
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "m"]
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    with pytest.raises(LabelwiseError, match="is not a model folder"):
        small_model("gap").save(tmp_path / "photos")
    assert (tmp_path / "photos" / "a.jpg").exists()


def test_a_failed_save_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("gap")
    model.save(tmp_path / "m")

    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("labelwise.model.tensors.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        small_model("csra").save(tmp_path / "m")
    assert lw.load_model(tmp_path / "m").config == model.config
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def changed(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **values}))


def test_broken_folders_say_what_is_wrong(tmp_path: Path) -> None:
    def fresh() -> Path:
        small_model("gap").save(tmp_path / "m")
        return tmp_path / "m"

    folder = fresh()
    changed(folder, format=99, made_with={"labelwise": "7.0"})
    with pytest.raises(LabelwiseError, match=r"newer labelwise \(7.0.*pip install -U labelwise"):
        lw.load_model(folder)
    folder = fresh()
    changed(folder, surprise=1)
    with pytest.raises(LabelwiseError, match="unknown key 'surprise'"):
        lw.load_model(folder)
    folder = fresh()
    changed(folder, labels=["cat", "cat", "dog", "sofa"])
    with pytest.raises(LabelwiseError, match="occur more than once: cat"):
        lw.load_model(folder)
    folder = fresh()
    changed(folder, labels=["cat"])
    with pytest.raises(LabelwiseError, match="the tensors do not belong to this config"):
        lw.load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(LabelwiseError, match="is damaged"):
        lw.load_model(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(LabelwiseError, match="has no format"):
        lw.load_model(folder)
    (tmp_path / "m" / "config.json").unlink()
    with pytest.raises(LabelwiseError, match=r"is not a model: it has neither config\.json"):
        lw.load_model(folder)
    (tmp_path / "m" / "recipe.yaml").write_text("epochs: 3\n")
    with pytest.raises(LabelwiseError, match=r"is not finished; go on with labelwise train --resume --out"):
        lw.load_model(tmp_path / "m")


def test_broken_weights_say_what_is_wrong(tmp_path: Path) -> None:
    small_model("gap").save(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LabelwiseError, match="is damaged"):
        lw.load_model(tmp_path / "m")
    weights.write_bytes(whole)
    tensors = load_file(weights)
    del tensors["head.classifier.bias"]
    save_file(tensors, weights)
    with pytest.raises(LabelwiseError, match=r"1 tensor is missing, e.g. 'head\.classifier\.bias'"):
        lw.load_model(tmp_path / "m")
    weights.unlink()
    with pytest.raises(LabelwiseError, match=r"has no model\.safetensors"):
        lw.load_model(tmp_path / "m")


def test_what_is_neither_a_folder_nor_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LabelwiseError, match="'nothing': neither a folder nor a hub id"):
        lw.load_model("nothing")
    for path in ("no/such/model/folder", "runs/first"):  # the latter looks like a hub id, which it is not
        with pytest.raises(LabelwiseError, match="it looks like a path, so the hub was not searched"):
            lw.load_model(path)
    with pytest.raises(LabelwiseError, match=r"the hub is not asked \(HF_HUB_OFFLINE=1\)"):
        lw.load_model("nobody/nothing")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for slip in ("runs/frist", "rnus/first"):
        with pytest.raises(LabelwiseError, match=r"so the hub was not searched; did you mean 'runs/first'\?$"):
            lw.load_model(slip)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": []}, "a model needs labels"),
        ({"labels": "cat"}, r"must be a list of names: \['cat'\]"),
        ({"labels": ["a", "a"]}, "occur more than once: a"),
        ({"labels": 3, "size": 2}, "backbone: size=2: input should be greater than or equal to 8"),
        ({"labels": 3, "head": "hsqq"}, "unknown head"),
        ({"labels": 3, "frobnicate": 1}, "unknown option 'frobnicate'"),
        ({"labels": 3, "task": "guess"}, "task='guess'"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        lw.create_model("test_resnet", weights="none", **arguments)


def test_scores_are_sigmoids_or_one_softmax() -> None:
    logits = torch.randn(3, 4)
    multi = lw.create_model("test_resnet", "gap", 4, weights="none")
    single = lw.create_model("test_resnet", "gap", 4, weights="none", task="single-label")
    torch.testing.assert_close(multi.scores(logits), logits.sigmoid())
    torch.testing.assert_close(single.scores(logits).sum(dim=1), torch.ones(3))


def test_details_of_a_model_say_where_it_looked() -> None:
    details = small_model().details(torch.randn(2, 3, 64, 96))
    assert details.label_attention.shape == (2, 4, 2, 3)
    assert len(details.gates) == 2


def test_a_compact_folder_gives_the_same_answers(tmp_path: Path) -> None:
    """Half the bytes for what was trained, and none for a frozen backbone that pip installs."""
    model = lw.create_model("tf_efficientnet_lite0", "hsq", ("cat", "dog"), size=64, dim=32)
    images = torch.randn(2, 3, 64, 64)
    before = model.eval()(images)
    for folder, compact in (("whole", False), ("small", True)):
        model.save(tmp_path / folder, compact=compact)
    sizes = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "small")}
    head = sum(parameter.numel() * 4 for parameter in model.head.parameters())
    assert sizes["small"] < 0.6 * head < sizes["whole"]
    assert torch.allclose(lw.load_model(tmp_path / "small")(images), before, atol=1e-2)
    assert torch.equal(lw.load_model(tmp_path / "whole")(images), before)

    with torch.no_grad():  # a backbone that has learned something has to be saved
        next(model.backbone.parameters()).add_(0.01)
    trained = model(images)
    model.save(tmp_path / "trained", compact=True)
    assert torch.allclose(lw.load_model(tmp_path / "trained")(images), trained, atol=5e-2)
    assert 0.4 < (tmp_path / "trained" / "model.safetensors").stat().st_size / sizes["whole"] < 0.6
    lw.load_model(tmp_path / "small").save(tmp_path / "again", compact=True)  # halves of halves are the same
    assert (tmp_path / "again" / "model.safetensors").stat().st_size == sizes["small"]

    again = lw.load_model(tmp_path / "small")  # what it learns after it was loaded is its own again
    with torch.no_grad():
        next(again.backbone.parameters()).add_(0.01)
    learned = again(images)
    again.save(tmp_path / "learned")
    assert torch.equal(lw.load_model(tmp_path / "learned")(images), learned)
