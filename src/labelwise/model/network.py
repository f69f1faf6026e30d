"""A backbone with a head that answers: what `LabelModel` and its optimised copy have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from labelwise import heads
from labelwise.backbones import Backbone
from labelwise.core.arrays import Floats
from labelwise.loading.augment import join_pairs
from labelwise.model.config import ModelConfig
from labelwise.runtime.prediction import Evidence, probabilities
from labelwise.runtime.sessions import Family


class TorchEngine:
    """The `Engine` of a module in evaluation mode. It runs where the module's parameters are, in their precision."""

    family: Family = "torch"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @torch.inference_mode()
    def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
        inputs = torch.from_numpy(images)
        like = next(self.module.parameters(), inputs)
        inputs = inputs.to(like.device, like.dtype).contiguous(memory_format=torch.channels_last)
        further = [] if known is None else [torch.from_numpy(known).to(like.device, like.dtype)]
        out: Floats = np.asarray(self.module(inputs, *further).float().cpu())
        return out


class Network(nn.Module):
    """images [B, 3, H, W], preprocessed -> logits [B, N]. As a `runtime.tagger.Model` it answers in NumPy arrays."""

    family: Family = "torch"

    def __init__(self, config: ModelConfig, backbone: Backbone, head: heads.Head) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.head = head

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The score from which each label applies."""
        return self.config.label_thresholds

    @property
    def takes_known(self) -> bool:
        return self.head.takes_known

    def forward(self, images: Tensor, known: Tensor | None = None, *, partners: Tensor | None = None) -> Tensor:
        """Logits [B, N].

        Args:
            images: [B, 3, H, W], preprocessed.
            known: [B, N], if the head takes it: 1 for labels known to be there, 0 for absent ones, -1 for all others.
            partners: [B]: each image's map is joined with that of the image it names (`pair_mix`).
        """
        maps = self.backbone(images)
        if partners is not None:
            maps = join_pairs(maps, partners)
        logits: Tensor = self.head(maps, **given(known))
        return logits

    def details(self, images: Tensor, known: Tensor | None = None) -> heads.HeadDetails:
        """The logits, where each label's query looked, and HSQ's gates."""
        return self.head.details(self.backbone(images), **given(known))

    def scores(self, logits: Tensor) -> Tensor:
        """Probabilities [B, N] from logits: independent ones, or a distribution over the labels."""
        scores = probabilities(logits.detach().float().cpu().numpy(), self.config)
        return torch.from_numpy(scores).to(logits)

    def logits(self, images: Floats, known: Floats | None = None) -> Floats:
        """Logits [B, N] of inputs [B, 3, H, W], both NumPy; puts the model into evaluation mode."""
        self._evaluate()
        return TorchEngine(self)(images, known)

    @torch.inference_mode()
    def evidence(self, images: Floats, known: Floats | None = None) -> Evidence:
        """The logits with what led to them, for inputs [B, 3, H, W], all NumPy."""
        self._evaluate()
        device = next(self.parameters()).device
        labels = None if known is None else torch.from_numpy(known).to(device)
        details = self.details(torch.from_numpy(images).to(device), labels)

        def array(tensor: Tensor | None) -> Floats | None:
            return None if tensor is None else tensor.float().cpu().numpy()

        logits = array(details.logits)
        assert logits is not None
        query = details.label_query.cpu().numpy()
        return Evidence(logits, query, array(details.mean_attention), array(details.stacked_gates))

    def _evaluate(self) -> None:
        if any(module.training for module in self.modules()):
            self.eval()


def given(known: Tensor | None) -> dict[str, Tensor]:
    """Only some heads have the argument."""
    return {} if known is None else {"known": known}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module returns to its own mode."""
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True
