"""The losses as modules, by class or by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

import torch
from pydantic import create_model
from torch import Tensor, nn

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.plugins import Registry, import_plugins
from labelwise.losses.functional import (
    asymmetric,
    bce,
    focal,
    hill,
    ranking,
    reduce,
    softmax_cross_entropy,
    splc,
    two_way,
)
from labelwise.losses.selective import csl

_LOSSES: Registry[type[Loss]] = Registry("loss", "labelwise.losses")


class Loss(nn.Module):
    """A loss function with its options; the function's keyword-only arguments are the options.

    A subclass registers itself: from then on `create`, recipes and `labelwise train --loss` know its name.

    Args:
        options: Options of the function, checked against its signature.

    Example:
        def squared(logits: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
            error = (logits.sigmoid() - targets).square()
            return error.mean() if reduction == "mean" else error.sum()

        class Squared(Loss, name="squared", function=squared):
            "Squared error of the probabilities."

        losses.create("squared", reduction="sum")
    """

    name: ClassVar[str]
    function: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls, *, name: str, function: Callable[..., Tensor]) -> None:
        super().__init_subclass__()
        if name in _LOSSES:
            raise LabelwiseError(f"there is a loss {name!r} already; choose another name")
        cls.name, cls.function = name, staticmethod(function)
        _LOSSES[name] = cls

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = _options_of(self.function)
        for option in options:
            if option not in known.model_fields:
                raise unknown_name("option", option, known.model_fields, f"loss {self.name!r}")
        self.options = known.parse(options, f"loss {self.name!r}").model_dump()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.function(logits, targets, **self.options)

    def weighted(self, logits: Tensor, targets: Tensor, image_weights: Tensor | None) -> Tensor:
        """The loss with a weight for every image [B]: "mean" is then the mean of weight times loss. None: as usual."""
        if image_weights is None:
            loss: Tensor = self(logits, targets)
            return loss
        if "reduction" not in self.options:
            raise LabelwiseError(
                f"this head weighs images, which the loss {self.name!r} cannot; use the loss 'ranking'"
            )
        entries = copy.copy(self)
        entries.options = {**self.options, "reduction": "none"}
        loss = entries(logits, targets)  # [B] or [B, N]
        weighted = loss * image_weights.view(-1, *[1] * (loss.dim() - 1))
        return reduce(weighted, torch.ones_like(weighted), self.options["reduction"])

    def set_epoch(self, epoch: int) -> None:
        """Training calls this at the start of every epoch (from 0). Most losses do not change over time."""

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class BCE(Loss, name="bce", function=bce):
    """Binary cross-entropy."""


class SoftmaxCrossEntropy(Loss, name="softmax-cross-entropy", function=softmax_cross_entropy):
    """Softmax cross-entropy, for exactly one label per image."""


class Focal(Loss, name="focal", function=focal):
    """Focal loss (Lin et al., ICCV 2017)."""


class Asymmetric(Loss, name="asymmetric", function=asymmetric):
    """Asymmetric loss (Ridnik et al., ICCV 2021)."""


class TwoWay(Loss, name="two-way", function=two_way):
    """Two-way loss (Kobayashi, CVPR 2023)."""


class Ranking(Loss, name="ranking", function=ranking):
    """Pairwise ranking loss, as in Fast0Tag, LESA, BiAM and SDL."""


class Hill(Loss, name="hill", function=hill):
    """Hill loss for missing labels (Zhang et al., 2021)."""


class SPLC(Loss, name="splc", function=splc):
    """Self-paced loss correction (Zhang et al., 2021). Without `set_epoch` it stays at epoch 0: no correction."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.function(logits, targets, epoch=self.epoch, **self.options)


class CSL(Loss, name="csl", function=csl):
    """Class-aware selective loss for partial labels (Ben-Baruch et al., CVPR 2022)."""


def list_losses() -> list[str]:
    """The names that `create` takes.

    >>> list_losses()
    ['bce', 'softmax-cross-entropy', 'focal', 'asymmetric', 'two-way', 'ranking', 'hill', 'splc', 'csl']
    """
    import_plugins("labelwise.losses")
    return list(_LOSSES)


def loss_options(name: str) -> list[str]:
    """The options that a loss takes.

    Args:
        name: One of `list_losses()`.

    >>> loss_options("bce")
    ['label_smoothing', 'target_threshold', 'unknown', 'unknown_weight', 'reduction']
    """
    return list(_options_of(_LOSSES.find(name).function).model_fields)


def create(name: str, **options: Any) -> Loss:
    """A loss module by name. A wrong name or option raises a `LabelwiseError` that lists the right ones.

    Args:
        name: One of `list_losses()`.
        **options: Options of the loss; the function of the same name documents them (`losses.asymmetric`, ...).

    >>> create("focal", gamma=1.5)
    Focal(gamma=1.5, alpha=None, unknown='ignore', unknown_weight=1.0, reduction='mean')
    """
    return _LOSSES.find(name)(**options)


def _options_of(function: Callable[..., Tensor]) -> type[Config]:
    """The keyword options of a loss function as a typed config; the epoch is not an option but a state."""
    types = get_type_hints(function, include_extras=True)
    options: dict[str, Any] = {
        key: (types[key], parameter.default)
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and key != "epoch"
    }
    return create_model(f"{function.__name__}_options", __base__=Config, **options)
