"""The class-aware selective loss against a literal one, and what it does with labels that nobody annotated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from labelwise import losses
from labelwise.core.errors import LabelwiseError
from labelwise.training.recipe import load_recipe, save_recipe
from tests.oracles.csl import literal_csl

LOGITS = 2 * torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.randint(-1, 2, (6, 9), generator=torch.Generator().manual_seed(1))
PRIOR = torch.linspace(0, 1, 9).tolist()


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["likelihood", "and prior"])
@pytest.mark.parametrize("top_k", [0, 1, 2, 50])
@pytest.mark.parametrize("of", ["image", "batch"])
def test_equals_the_paper_entry_by_entry(of: Any, top_k: int, prior: list[float] | None) -> None:
    for gammas in ((0.0, 1.0, 4.0), (1.0, 3.0, 7.0)):
        options = dict(zip(("gamma_pos", "gamma_neg", "gamma_unknown"), gammas, strict=True))
        ours = losses.csl(
            LOGITS, TARGETS, top_k=top_k, top_k_of=of, prior=prior, prior_threshold=0.4, reduction="sum", **options
        )
        expected = literal_csl(
            LOGITS.tolist(),
            TARGETS.tolist(),
            gammas=gammas,
            top_k=top_k,
            prior=prior,
            eta=0.4,
            whole_batch=of == "batch",
        )
        assert ours.item() == pytest.approx(expected, rel=1e-6)


def test_likely_labels_have_no_gradient_and_the_others_are_pushed_down() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0, 0.5]], requires_grad=True)
    losses.csl(logits, torch.tensor([[1, -1, -1, -1]]), top_k=1, prior=[0.9, 0.1, 0.1, 0.8]).backward()
    assert logits.grad is not None
    present, likely, rare, frequent = logits.grad[0].tolist()
    assert present < 0 < rare
    assert likely == frequent == 0.0


def test_the_mean_is_over_what_counts_and_known_labels_are_asymmetrics() -> None:
    known = TARGETS.clamp(min=0)
    same = {"gamma_neg": 2.0, "clip": 0.05, "detach_weight": True}
    torch.testing.assert_close(losses.csl(LOGITS, known, **same), losses.asymmetric(LOGITS, known, **same))
    ignored = losses.csl(LOGITS, TARGETS, **same, top_k=9)  # all unknown labels are likely
    torch.testing.assert_close(ignored, losses.asymmetric(LOGITS, TARGETS, **same))


def test_it_is_finite_in_half_precision_and_traces_into_one_graph() -> None:
    logits = torch.tensor([[1e4, -1e4, 20.0], [-20.0, 0.0, 100.0]]).half().requires_grad_()
    targets = torch.tensor([[0, 1, -1], [1, -1, -1]])
    loss = losses.create("csl", top_k=1, prior=[0.1, 0.2, 0.9])
    loss(logits, targets).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(LOGITS[:, :3], TARGETS[:, :3]), loss(LOGITS[:, :3], TARGETS[:, :3]))


def test_the_prior_of_a_recipe_is_a_file_and_is_saved_with_it(tmp_path: Path) -> None:
    file = tmp_path / "prior.csv"

    def options() -> dict[str, Any]:
        return load_recipe(None, {"loss.name": "csl", "loss.options.prior": str(file)}).loss.options

    with pytest.raises(LabelwiseError, match="No such file"):
        options()
    file.write_text("cat,0.7\nsofa,often\n")
    with pytest.raises(LabelwiseError, match=r"prior .* cannot be read: could not convert"):
        options()
    file.write_text('label,share\ncat,0.7\n"sofa, red",0.1\n')
    save_recipe(load_recipe(None, {"loss": {"name": "csl", "options": {"prior": str(file)}}}), tmp_path / "recipe.yaml")
    file.unlink()
    saved = load_recipe(tmp_path / "recipe.yaml").loss.options
    assert saved == {"prior": [0.7, 0.1]}
    with pytest.raises(LabelwiseError, match="prior has 2 values for 9 labels"):
        losses.create("csl", **saved)(LOGITS, TARGETS)
