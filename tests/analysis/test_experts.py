"""Gate weights from the meter against the head's own record, what is said about them, and how training keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwise.analysis.experts import ExpertUse, expert_use, recorded_use, row_names
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from labelwise.heads import GateMeter, create
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.reports.expert_sections import expert_figures, expert_words, most_particular, write_experts
from labelwise.training import load_recipe
from labelwise.training.run import read_gates
from labelwise.training.train import train


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> LabelTable:
    return make_sample(tmp_path_factory.mktemp("sample"), images=40, size=48)


@pytest.fixture(scope="module")
def model(sample: LabelTable) -> LabelModel:
    torch.manual_seed(0)
    options = {"dim": 16, "attention_heads": 2, "shared_experts": 5, "task_experts": 2}
    return create_model("test_resnet", "hsq", sample.labels, weights="none", size=32, **options).eval()


def use_of(weights: list[list[float]], shared: int, names: str = "abcdefgh") -> ExpertUse:
    return ExpertUse(tuple(names[: len(weights)]), np.array([weights]), shared)


@pytest.mark.parametrize("options", [{}, {"gate_hidden": 8}, {"groups": 3}, {"wiring": "progressive"}])
def test_the_meter_equals_the_recorded_gates(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    head = create("hsq", in_features=16, labels=7, dim=16, attention_heads=2, shared_experts=3, **options).eval()
    batches = [torch.randn(size, 16, 3, 3) for size in (4, 1, 6)]
    with torch.no_grad():
        details = [head.details(batch) for batch in batches]
        with GateMeter(head) as meter:
            plain = [head(batch) for batch in batches]
        head(batches[0])  # no longer watched
    assert meter.images == 11
    total = meter.total()
    assert total is not None
    expected = torch.stack([torch.cat([d.gates[layer] for d in details]).mean(dim=0) for layer in range(2)])
    torch.testing.assert_close(total / meter.images, expected.double(), atol=1e-6, rtol=1e-6)
    for logits, recorded in zip(plain, details, strict=True):
        torch.testing.assert_close(logits, recorded.logits)


def test_heads_without_a_choice_have_nothing_to_watch() -> None:
    for name, options in (("gap", {}), ("q2l", {"dim": 16}), ("hsq", {"dim": 16, "shared_experts": 0})):
        with GateMeter(create(name, in_features=16, labels=3, **options)) as meter:
            assert meter.total() is None


def test_use_of_a_model_on_images(model: LabelModel, sample: LabelTable) -> None:
    use = expert_use(model, sample, workers=0, progress=False)
    assert (use.layers, use.shared_experts, use.task_experts, use.images) == (2, 5, 2, 40)
    assert use.names == sample.labels
    assert use.experts == ("s1", "s2", "s3", "s4", "s5", "own 1", "own 2")
    np.testing.assert_allclose(use.weights.sum(axis=2), 1, atol=1e-6)
    # Of one picture, by hand: the head lists own experts first, the figure lists them last.
    one = expert_use(model, sample.select(np.array([3])), workers=0, progress=False)
    from labelwise.data.images import load_image
    from labelwise.loading.augment import eval_transform

    transform = eval_transform(model.config.preprocessing)
    picture = transform(load_image(sample.images[3], min_side=transform.min_side))[None]
    with torch.no_grad():
        gates = model.details(picture).gates[1][0].numpy()  # [K, n_t + n_s]
    np.testing.assert_allclose(one.weights[1], np.roll(gates, -2, axis=1), atol=1e-5)
    with pytest.raises(LabelwiseError, match="no experts to choose among"):
        expert_use(create_model("test_resnet", "gap", sample.labels, weights="none", size=32), sample)


def test_dead_experts_are_named() -> None:
    """Four columns: an even part is 0.25, a tenth of it 0.025."""
    use = use_of([[0.97, 0.01, 0.01, 0.01], [0.47, 0.024, 0.026, 0.48]], shared=3)
    assert use.dead(0) == ["s2", "own of a"]  # s3 serves b just enough
    assert use_of([[0.25] * 4], shared=4).dead(0) == []
    assert use_of([[0.99, 0.01]], shared=0).dead(0) == ["own 2 of a"]


def test_balance_of_the_shared_experts_leaves_the_own_ones_out() -> None:
    even = use_of([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4]], shared=2)
    assert even.evenness(0) == pytest.approx(1)
    assert even.variation(0) == pytest.approx(0, abs=1e-12)
    assert even.own_share(0) == pytest.approx(0.6)
    one_sided = use_of([[0.5, 0.0, 0.5], [0.2, 0.0, 0.8]], shared=2)
    assert one_sided.evenness(0) == pytest.approx(0, abs=1e-9)
    assert one_sided.variation(0) == pytest.approx(1)


def test_labels_that_share_experts_are_found() -> None:
    use = use_of([[0.6, 0.0, 0.4], [0.0, 0.5, 0.5], [0.1, 0.0, 0.9], [0.0, 0.2, 0.8]], shared=2)
    apart = use.distances(0)
    assert apart[0, 2] == apart[1, 3] == 0  # the same mixture, however much of it
    assert apart[0, 1] == apart[2, 3] == 1  # no expert in common
    assert {pair[:2] for pair in use.closest(0, 2)} == {("a", "c"), ("b", "d")}
    assert {frozenset(merge[:2]) for merge in use.tree(0)[:2]} == {frozenset((0, 2)), frozenset((1, 3))}


def test_charts_show_every_weight_and_name_groups() -> None:
    use = use_of([[0.6, 0.1, 0.3], [0.05, 0.5, 0.45]], shared=2, names="<&")
    (figure,) = expert_figures(use)
    assert figure.count("<rect") == 3 * 3  # two labels and the mean
    assert "&lt;, own: 0.3" in figure
    assert "<title><" not in figure
    assert "mean, s1: 0.325" in figure
    many = ExpertUse(tuple(map(str, range(200))), np.random.default_rng(0).dirichlet(np.ones(4), (1, 200)), 3)
    shown = most_particular(many, 0, 80)
    assert len(shown) == 80
    far = np.abs(many.weights[0] - many.load(0)).sum(axis=1)
    assert far[shown].min() >= np.delete(far, shown).max()
    assert "80 of 200 labels" in expert_figures(many)[0]
    assert row_names(("a", "b", "c", "d", "e"), np.array([0, 0, 1, 0, 0])) == ("a, b, d, …", "c")


@pytest.mark.parametrize("weights", [[[1.0]], [[0.5, 0.5]], [[0.5, 0.5], [1.0, 0.0]]])
@pytest.mark.parametrize("shared", [0, 1])
def test_small_cases_can_be_drawn(weights: list[list[float]], shared: int) -> None:
    use = use_of(weights, shared)
    assert len(expert_figures(use)) == 1
    assert expert_words(use)
    json.dumps(use.to_dict(), allow_nan=False)


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_training_records_the_gates_of_each_epoch(
    freeze: str, sample: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    settings = {
        "data.source": str(Path(sample.images[0]).parents[1] / "labels.csv"),
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.head": "hsq",
        "model.options": {"dim": 16, "attention_heads": 2, "shared_experts": 3},
        "model.freeze": freeze,
        "optimizer.lr": 1e-2,
        "epochs": 3,
        "batch_size": 8,
        "workers": 0,
        "precision": "32-true",
        "refit": 0.0,  # the gates are those from before it
    }
    run = tmp_path / "run"
    train(load_recipe(None, settings), run)
    history = read_gates(run)
    assert [epoch for epoch, _ in history] == [1, 2, 3]
    assert not np.allclose(history[0][1], history[2][1])
    recorded = recorded_use(run)
    assert recorded is not None
    # The kept epoch's record is what the saved model does on the validation images.
    fresh = expert_use(load_model(run), sample.select("val"), run=run, workers=0, progress=False)
    np.testing.assert_allclose(recorded.weights, fresh.weights, atol=2e-3 if freeze == "backbone" else 1e-4)
    assert len(fresh.history) == 3

    write_experts(fresh, tmp_path / "experts.html")
    page = (tmp_path / "experts.html").read_text()
    assert "During training" in page
    assert "epoch 3, s1" in page
    write_experts(fresh, tmp_path / "experts.json")
    content = json.loads((tmp_path / "experts.json").read_text())
    assert content["layers"][0]["weights"][2] == pytest.approx(fresh.weights[0, 2].tolist())
    assert [entry["epoch"] for entry in content["history"]] == [1, 2, 3]
    with pytest.raises(LabelwiseError, match=r"\.html, \.json"):
        write_experts(fresh, tmp_path / "experts.txt")

    # A killed run's gates of an epoch that never finished do not count; a damaged file is named.
    (run / "gates" / "0004.npy").write_bytes((run / "gates" / "0003.npy").read_bytes())
    assert len(read_gates(run)) == 3
    (run / "gates" / "0002.npy").write_bytes(b"oops")
    with pytest.raises(LabelwiseError, match="cannot be read"):
        read_gates(run)
    train(load_recipe(None, settings | {"model.head": "gap", "model.options": {}, "epochs": 1}), run, overwrite=True)
    assert not (run / "gates").exists()
    assert recorded_use(run) is None
