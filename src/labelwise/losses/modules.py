"""The losses as modules, by class or by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

from pydantic import create_model
from torch import Tensor, nn

from labelwise.core.config import Config
from labelwise.core.errors import unknown_name
from labelwise.losses.functional import asymmetric, bce, focal, hill, ranking, softmax_cross_entropy, splc, two_way


class Loss(nn.Module):
    """A loss function with its options. The function's signature is the one list of options, defaults and ranges."""

    name: ClassVar[str]
    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = _options_of(self.function)
        for option in options:
            if option not in known.model_fields:
                raise unknown_name(f"option of loss {self.name!r}", option, known.model_fields)
        self.options = known.parse(options, f"loss {self.name!r}").model_dump()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.function(logits, targets, **self.options)

    def set_epoch(self, epoch: int) -> None:
        """Training calls this at the start of every epoch (from 0). Most losses do not change over time."""

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class BCE(Loss):
    name = "bce"
    function = staticmethod(bce)


class SoftmaxCrossEntropy(Loss):
    name = "softmax-cross-entropy"
    function = staticmethod(softmax_cross_entropy)


class Focal(Loss):
    name = "focal"
    function = staticmethod(focal)


class Asymmetric(Loss):
    name = "asymmetric"
    function = staticmethod(asymmetric)


class TwoWay(Loss):
    name = "two-way"
    function = staticmethod(two_way)


class Ranking(Loss):
    name = "ranking"
    function = staticmethod(ranking)


class Hill(Loss):
    name = "hill"
    function = staticmethod(hill)


class SPLC(Loss):
    """Remembers the epoch; without `set_epoch` it stays at 0, before any correction."""

    name = "splc"
    function = staticmethod(splc)
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.function(logits, targets, epoch=self.epoch, **self.options)


_LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (BCE, SoftmaxCrossEntropy, Focal, Asymmetric, TwoWay, Ranking, Hill, SPLC)
}


def list_losses() -> list[str]:
    """The names `create` knows.

    >>> list_losses()
    ['bce', 'softmax-cross-entropy', 'focal', 'asymmetric', 'two-way', 'ranking', 'hill', 'splc']
    """
    return list(_LOSSES)


def loss_options(name: str) -> list[str]:
    """The options that the loss `name` takes.

    >>> loss_options("bce")
    ['label_smoothing', 'target_threshold', 'unknown', 'unknown_weight', 'reduction']
    """
    return list(_options_of(_find(name).function).model_fields)


def _find(name: str) -> type[Loss]:
    if name not in _LOSSES:
        raise unknown_name("loss", name, _LOSSES)
    return _LOSSES[name]


def create(name: str, **options: Any) -> Loss:
    """A loss module by name; wrong names and options raise a `LabelwiseError` that lists the right ones.

    >>> create("focal", gamma=1.5)
    Focal(gamma=1.5, alpha=None, unknown='ignore', unknown_weight=1.0, reduction='mean')
    """
    return _find(name)(**options)


def _options_of(function: Callable[..., Tensor]) -> type[Config]:
    """The keyword options of a loss function as a typed config; the epoch is not an option but a state."""
    types = get_type_hints(function, include_extras=True)
    options: dict[str, Any] = {
        key: (types[key], parameter.default)
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and key != "epoch"
    }
    return create_model(f"{function.__name__}_options", __base__=Config, **options)
