"""How much weight HSQ's gates give to each expert, watched while a model runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from labelwise.heads.experts import HybridSharingLayer


class GateMeter:
    """Sums up the gates' weights over all images that run through `module` inside `with meter:`.

    It listens to the gates, so the images run once, and neither the logits nor the code that runs them change.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = [part for part in module.modules() if isinstance(part, HybridSharingLayer)]
        # A layer with a single expert has no gate (all weight goes to that one): there is nothing to watch.
        self.gates = [layer.gate for layer in layers if layer.gate is not None]
        self.sums: list[Tensor | None] = [None] * len(self.gates)  # [K, n_t + n_s] each: the query's own experts first
        self.images = 0
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for number, gate in enumerate(self.gates):
            self._hooks.append(gate.register_forward_hook(lambda _, __, out, n=number: self._add(n, out)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _add(self, number: int, logits: Tensor) -> None:  # [K, B, n_t + n_s]
        weights = logits.detach().float().softmax(dim=-1).sum(dim=1).double()
        before = self.sums[number]
        self.sums[number] = weights if before is None else before + weights
        if number == 0:
            self.images += logits.shape[1]

    def total(self) -> Tensor | None:
        """The sums of all layers, [layers, K, n_t + n_s]; None if there are no gates, or nothing has run."""
        seen = [part for part in self.sums if part is not None]
        return torch.stack(seen).cpu() if seen else None
