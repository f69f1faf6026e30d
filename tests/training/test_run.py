"""Whole runs on the sample set: what they leave behind, that they repeat, and what they say when something is wrong."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.heads import QueryHead
from labelwise.loading.augment import draw_partners, join_pairs
from labelwise.training import load_recipe
from labelwise.training.checkpoint import read_checkpoint
from labelwise.training.loop import Trainer
from labelwise.training.train import train
from run_kit import recipe


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_a_run_leaves_everything_behind_and_repeats_to_the_bit(freeze: str, sample: Path, tmp_path: Path) -> None:
    wanted = recipe(sample, **{"model.freeze": freeze, "augmentation": {"policy": "randaugment"}, "mixup": 0.2})
    model = train(wanted, tmp_path / "a").model()
    run = tmp_path / "a"
    assert {"model", "recipe.yaml", "metrics.jsonl", "checkpoints", "log.txt"} <= {p.name for p in run.iterdir()}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    log = (run / "log.txt").read_text()
    assert "2 epochs of " in log
    assert log.count(" left\n") == 1  # after the first epoch
    assert all({"loss", "mAP", "CF1", "OF1", "lr", "images_per_second"} <= set(row) for row in rows)
    assert load_recipe(run / "recipe.yaml", {}) == wanted
    loaded = lw.load_model(run)
    assert loaded.config.thresholds is not None
    assert loaded.config.results["mAP"] == max(row["mAP"] for row in rows)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(x), model.eval()(x))
    train(wanted, tmp_path / "b")
    first, second = weights(run), weights(tmp_path / "b")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_recipe_of_a_run_is_complete_and_reruns_it(sample: Path, tmp_path: Path) -> None:
    train(recipe(sample), tmp_path / "a")
    written = yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())
    assert written["optimizer"]["betas"] == [0.9, 0.999]  # a default that nobody set
    train(load_recipe(tmp_path / "a" / "recipe.yaml", {}), tmp_path / "b")
    assert all(torch.equal(t, weights(tmp_path / "b")[name]) for name, t in weights(tmp_path / "a").items())


def test_a_frozen_backbone_stays_as_it_was(sample: Path, tmp_path: Path) -> None:
    wanted = recipe(sample, **{"model.freeze": "backbone"})
    torch.manual_seed(wanted.seed)
    fresh = lw.create_model("test_resnet", "hsq", 13, weights="none", size=32, **wanted.model.options)
    train(wanted, tmp_path / "a")
    trained = weights(tmp_path / "a")
    for name, tensor in fresh.state_dict().items():
        if name.startswith("backbone."):
            assert torch.equal(trained[name], tensor), name  # weights and running statistics alike
    assert not torch.equal(trained["head.queries.weight"], fresh.state_dict()["head.queries.weight"])


def test_without_validation_the_averaged_weights_are_saved(sample: Path, tmp_path: Path) -> None:
    common = {"model.freeze": "backbone", "epochs": 1, "data.validation": None}
    train(recipe(sample, **common), tmp_path / "plain")
    train(recipe(sample, **common, ema=0.9), tmp_path / "ema")
    saved, last = weights(tmp_path / "ema"), weights(tmp_path / "plain")
    name = "head.classifier.bias"
    assert not torch.equal(saved[name], last[name])
    tensors, _ = read_checkpoint(tmp_path / "ema" / "checkpoints" / "last.safetensors")
    assert torch.equal(tensors["averaged.module.classifier.bias"], saved[name])
    assert torch.equal(tensors["module.classifier.bias"], last[name])


def test_the_better_of_raw_and_averaged_weights_is_saved(sample: Path, tmp_path: Path) -> None:
    """A slow average of a short training is nearly its random start: here the raw weights are the better ones."""
    changes = {"model.freeze": "backbone", "model.head": "gap", "model.options": {}, "optimizer.lr": 0.05}
    run = train(recipe(sample, **changes, epochs=2, ema=0.9999), tmp_path / "run")
    for row in run.history:
        assert row["mAP"] == row["mAP_raw"] > row["mAP_averaged"]
        assert row["weights"] == "raw"
    tensors, _ = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert torch.equal(weights(tmp_path / "run")["head.classifier.bias"], tensors["module.classifier.bias"])


def test_averaging_leaves_the_label_groups_alone(sample: Path, tmp_path: Path) -> None:
    """Slots are whole numbers in a buffer: their average would move labels to other groups."""
    options = {"dim": 16, "attention_heads": 2, "groups": 4}
    changes = {"model.freeze": "backbone", "model.head": "ml-decoder", "model.options": options, "ema": 0.9}
    train(recipe(sample, **changes, epochs=1), tmp_path / "a")
    fresh = lw.heads.create("ml-decoder", in_features=96, labels=13, **options)
    assert torch.equal(weights(tmp_path / "a")["head.label_slot"], fresh.state_dict()["label_slot"])


@pytest.mark.parametrize("freeze", ["backbone", "none"])
def test_scenes_have_the_labels_of_the_maps_in_them(
    freeze: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are joined in the loop (cached ones) or in the model: either way with the partners whose labels count."""
    drawn: list[torch.Tensor] = []
    joined: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []

    def draw(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        partners, labels = draw_partners(batch)
        drawn.append(partners)
        targets.append(labels)
        return partners, labels

    def join(maps: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        joined.append(partners)
        return join_pairs(maps, partners)

    def learned(head: QueryHead, labels: torch.Tensor) -> torch.Tensor:
        assert torch.equal(labels, targets[-1])
        return labels

    monkeypatch.setattr("labelwise.training.loop.draw_partners", draw)
    monkeypatch.setattr("labelwise.training.loop.join_pairs", join)
    monkeypatch.setattr("labelwise.model.network.join_pairs", join)
    monkeypatch.setattr(QueryHead, "training_targets", learned)
    train(recipe(sample, **{"model.freeze": freeze, "pair_mix": 1.0, "epochs": 1}), tmp_path / "a")
    assert len(drawn) == len(joined) == 5  # whole batches of 8 out of 42 photos
    assert all(torch.equal(one, other) for one, other in zip(drawn, joined, strict=True))


# A backbone that learns too has weights and optimizer state in another order than a checkpoint.
# C-Tran's label masks are drawn anew in every step.
C_TRAN = {"model.head": "c-tran", "model.options": {"dim": 16, "encoder_layers": 1}}


@pytest.mark.parametrize(
    ("freeze", "stops_at", "changes"),
    [("backbone", range(1, 10), {}), ("none", [2, 7], {}), ("backbone", [6], C_TRAN)],
    ids=["backbone", "none", "c-tran"],
)
def test_stopped_after_any_step_a_run_goes_on_to_the_same_bits(
    freeze: str,
    stops_at: Sequence[int],
    changes: dict[str, Any],
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two epochs of five batches, two of them to an optimizer step, a checkpoint wherever one may be written."""
    wanted = recipe(
        sample,
        **{"model.freeze": freeze, "accumulate": 2, "ema": 0.9, "checkpoint_minutes": 1e-9, "epochs": 2, **changes},
    )
    train(wanted, tmp_path / "whole")
    expected = weights(tmp_path / "whole")
    real = Trainer._step
    for last in stops_at:

        def stops(self: Trainer, *batch: Any, last: int = last) -> float:
            if self.progress.step == last:
                raise RuntimeError("power cut")
            return real(self, *batch)

        run = tmp_path / f"stopped-{last}"
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_step", stops)
            with pytest.raises(RuntimeError, match="power cut"):
                train(wanted, run)
        train(wanted, run, resume=True)
        assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in expected.items()), last
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_batch_of_broken_images_ends_the_run_with_its_name(sample: Path, tmp_path: Path) -> None:
    """Passing it over would shift all later steps, and processes would wait for each other."""
    (tmp_path / "broken.jpg").write_bytes(b"")
    lines = ["image,labels,split", f"{tmp_path / 'broken.jpg'},sun,train", f"{tmp_path / 'b2.jpg'},moon,train"]
    (tmp_path / "b2.jpg").write_bytes(b"no picture")
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    wanted = recipe(tmp_path / "bad.csv", **{"data.on_bad_image": "skip", "data.validation": None, "batch_size": 2})
    with pytest.raises(LabelwiseError, match="none of the 2 images of a batch can be decoded"):
        train(wanted, tmp_path / "a")


def test_early_stop_ends_a_run_that_no_longer_gets_better(sample: Path, tmp_path: Path) -> None:
    wanted = recipe(sample, **{"model.freeze": "backbone", "optimizer.lr": 1e-12, "epochs": 20, "early_stop": 2})
    train(wanted, tmp_path / "a")
    rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert 3 <= len(rows) < 20


def test_splits_are_made_where_there_are_none(sample: Path, tmp_path: Path) -> None:
    bare = sample.parent / "bare.csv"
    with sample.open(newline="") as source, bare.open("w", newline="") as target:
        writer = csv.DictWriter(target, ["image", "labels"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(csv.DictReader(source))
    train(recipe(bare, epochs=1), tmp_path / "a")
    made = lw.data.open_data(tmp_path / "a" / "split.csv")
    assert made.split_names == ("train", "val", "test")
    assert "train, val and test were made" in (tmp_path / "a" / "log.txt").read_text()


def test_a_run_is_not_overwritten_unless_told_to(sample: Path, tmp_path: Path) -> None:
    train(recipe(sample, epochs=1), tmp_path / "a")
    with pytest.raises(LabelwiseError, match=r"already holds a run; resume or overwrite it"):
        train(recipe(sample, epochs=1), tmp_path / "a")
    with pytest.raises(LabelwiseError, match="cannot be resumed"):
        train(recipe(sample, epochs=3), tmp_path / "a", resume=True)
    train(recipe(sample, epochs=1, seed=5), tmp_path / "a", overwrite=True)
    assert load_recipe(tmp_path / "a" / "recipe.yaml", {}).seed == 5


def test_a_loss_that_is_not_a_number_keeps_the_last_good_checkpoint(sample: Path, tmp_path: Path) -> None:
    wanted = recipe(
        sample, **{"optimizer.lr": 1e30, "optimizer.clip_norm": None, "loss.name": "bce", "schedule.warmup": 0.5}
    )
    with pytest.raises(LabelwiseError, match=r"the loss became .*lr="):
        train(wanted, tmp_path / "a")


def test_a_full_disk_keeps_the_last_good_checkpoint(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(sample, epochs=3)
    writes: list[Path] = []
    from labelwise.model import tensors as files

    real = files.save_file

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        writes.append(path)
        if len(writes) > 2:  # best and last of the first epoch were fine
            path.write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(LabelwiseError, match=r"No space left.*the previous one is kept.*resume=True"):
        train(wanted, tmp_path / "a")
    monkeypatch.undo()
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    _, state = read_checkpoint(tmp_path / "a" / "checkpoints" / "last.safetensors")
    assert len(state["history"]) == 1
    train(wanted, tmp_path / "a", resume=True)
    train(wanted, tmp_path / "b")
    assert all(torch.equal(t, weights(tmp_path / "b")[name]) for name, t in weights(tmp_path / "a").items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.source": None}, "no data to train on"),
        ({"data.source": "nowhere.csv"}, "no file or folder 'nowhere.csv'"),
        ({"model.head": "hsqq"}, "unknown head"),
        ({"loss.name": "asl"}, "unknown loss"),
        ({"data.validation": "holdout"}, "holdout"),
        ({"loss.options": {"reduction": "none"}}, "gives no number to minimise"),
        ({"model.head": "ml-decoder", "model.options": {"queries": "words"}}, "model.words=.package:glove-50d"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str, sample: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match=message):
        train(recipe(sample, **changes), tmp_path / "a")


def test_another_head_leaves_behind_what_it_does_not_know() -> None:
    """`--head gap` on the default recipe, whose head has dim=256; what the user sets for it is checked."""
    assert load_recipe(None, {"model.head": "gap"}).model.options == {}
    assert load_recipe(None, {"model.head": "q2l"}).model.options == {"dim": 256, "token_dropout": 0.5}
    assert load_recipe(None, {"model.head": "gap", "model.options.dropout": 0.2}).model.options == {"dropout": 0.2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"optimizer.learning_rate": 3}, "recipe: optimizer: unknown key 'learning_rate'"),
        ({"epochs.number": 3}, "'epochs' is a plain value"),
        ({"optimizer.lr": -1}, "optimizer.lr=-1: input should be greater than 0"),
    ],
)
def test_mistakes_in_recipes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        load_recipe(None, changes)


@pytest.mark.parametrize("model", ["test_resnet", {"options": [1]}])
def test_a_recipe_that_is_no_recipe_is_named_with_another_head_too(model: Any, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"model": model}))
    with pytest.raises(LabelwiseError, match="model"):
        load_recipe(tmp_path / "r.yaml", {"model.head": "gap"})
    with pytest.raises(LabelwiseError, match="start"):
        load_recipe(None, {"model.start": 5})
