"""What HSQ's paper leaves open about its gates, tried on val: their temperature, experts that are left out at random,
and a loss that asks for balance between experts. All of them act on the gates' logits, so hooks do it from outside.

    python benchmarks/hsq_freedoms.py --data voc:/data/VOCdevkit --out study/freedoms \\
        --json docs/results/hsq-freedoms.json

The settings are those of the row `hsq` of benchmarks/study_voc.yaml; finished trials are kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from labelwise.heads.experts import HybridSharingLayer
from labelwise.sweeps.execute import Outcome, run_one, status_of
from labelwise.sweeps.plan import PlannedRun
from labelwise.training import load_recipe
from labelwise.training.run import read_history
from study import read_study

Change = Callable[[Tensor, bool], Tensor]  # gate logits [K, B, E], whether in training -> logits


def temperature(value: float) -> Change:
    """Above 1 the gates weigh experts more evenly, below 1 they decide."""
    return lambda logits, _: logits / value


def expert_dropout(share: float) -> Change:
    """Each image's query does without a random share of its experts in training; the others take over their weight."""

    def change(logits: Tensor, training: bool) -> Tensor:
        if not training:
            return logits
        gone = torch.rand_like(logits) < share
        gone &= ~gone.all(dim=-1, keepdim=True)  # none is left: then all stay
        return logits.masked_fill(gone, float("-inf"))

    return change


def balance(strength: float) -> Change:
    """A loss beside the labels': 0 if a batch uses all experts alike, E - 1 if it uses only one (the squared
    coefficient of variation, as in sparsely gated mixtures of experts)."""

    def change(logits: Tensor, training: bool) -> Tensor:
        if not training:
            return logits
        use = logits.softmax(dim=-1).mean(dim=(0, 1))  # [E]
        added: Tensor = _WithLoss.apply(logits, strength * (len(use) * use.square().sum() - 1))
        return added

    return change


class _WithLoss(torch.autograd.Function):
    """Passes x on; in the backward pass `loss` joins whatever is minimised behind it."""

    @staticmethod
    def forward(context: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return gradient, gradient.new_ones(())


TRIALS = {
    "temperature-0.5": temperature(0.5),
    "temperature-2": temperature(2.0),
    "expert-dropout-0.2": expert_dropout(0.2),
    "balance-0.01": balance(0.01),
    "balance-0.1": balance(0.1),
}


@contextmanager
def changed_gates(change: Change) -> Iterator[None]:
    """Every gate of a hybrid sharing layer gives changed logits."""
    known: WeakSet[nn.Module] = WeakSet()

    def attach(layer: nn.Module, _: object) -> None:
        if isinstance(layer, HybridSharingLayer) and layer.gate is not None and layer.gate not in known:
            known.add(layer.gate)
            layer.gate.register_forward_hook(lambda gate, _, logits: change(logits, gate.training))

    hook = register_module_forward_pre_hook(attach)
    try:
        yield
    finally:
        hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    study = read_study("voc")
    source = {"data.source": arguments.data, "thresholds": "none"}
    recipe = load_recipe(None, source | study["stages"]["tune"] | study["always"] | study["rows"]["hsq"]["set"])
    found = []
    for name, change in TRIALS.items():
        planned = PlannedRun(name, {"trial": name}, recipe)
        with changed_gates(change):
            outcome = run_one(Outcome(planned, status_of(arguments.out / name, planned)), arguments.out, None)
        if outcome.status != "finished":
            raise SystemExit(f"{name}: {outcome.reason}")
        history = read_history(arguments.out / name)
        found.append({"trial": name, "val_mAP": [round(epoch["mAP"], 2) for epoch in history]})
        print(f"{name}: {found[-1]['val_mAP'][-1]}", flush=True)
        arguments.json.write_text(json.dumps({"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
