"""The losses as modules, by class or by name."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, get_args, get_type_hints

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
from labelwise.losses.partial import adam_step, em, gpr, pseudo_negatives, role
from labelwise.losses.selective import csl

_LOSSES: Registry[type[Loss]] = Registry("loss", "labelwise.losses")
_CLOCK = ("epoch", "epochs")  # arguments of a function that training sets


class Loss(nn.Module):
    """A loss function with its options; the function's keyword-only arguments are the options.

    A subclass registers itself: from then on `create`, recipes and `labelwise train --loss` know its name. A function
    with an argument `epoch` or `epochs` gets the current epoch and their number from training.

    A loss that `remembers` something of each image makes room for it in `start`, as buffers, which every checkpoint
    holds. Training then names the images of a batch: `loss(logits, targets, rows)`. `memory` is the function that
    changes what is remembered; its keyword-only arguments are options, too. Such a loss trains in one process, on
    images that are not mixed. `uses_unknown` says that it learns from labels that nobody has looked for.

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
    memory: ClassVar[Callable[..., Any] | None]
    remembers: ClassVar[bool]
    uses_unknown: ClassVar[bool] = False
    epoch, epochs = 0, 1

    def __init_subclass__(
        cls,
        *,
        name: str,
        function: Callable[..., Tensor],
        memory: Callable[..., Any] | None = None,
        uses_unknown: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        if name in _LOSSES:
            raise LabelwiseError(f"there is a loss {name!r} already; choose another name")
        cls.name, cls.function = name, staticmethod(function)
        cls.memory = None if memory is None else staticmethod(memory)
        cls.remembers = memory is not None
        if uses_unknown is not None:  # else as the class that it extends
            cls.uses_unknown = uses_unknown
        _LOSSES[name] = cls

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = _options_of(type(self))
        for option in options:
            if option not in known.model_fields:
                raise unknown_name("option", option, known.model_fields, f"loss {self.name!r}")
        self.options = known.parse(options, f"loss {self.name!r}").model_dump()
        self._clock = [name for name in _CLOCK if name in inspect.signature(self.function).parameters]

    @property
    def is_steady(self) -> bool:
        """Whether it is the same in every epoch and for every image."""
        return not self.remembers and not self._clock

    def forward(self, logits: Tensor, targets: Tensor, rows: Tensor | None = None) -> Tensor:
        """`rows` [B]: the images' numbers in the training table, for a loss that remembers something of each."""
        return self._value(logits, targets)

    def _value(self, logits: Tensor, targets: Tensor, **remembered: Tensor) -> Tensor:
        clock = {name: getattr(self, name) for name in self._clock}
        return self.function(logits, targets, **clock, **remembered, **self._options(self.function))

    def _options(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The options that a function takes: the loss's own, or the one that changes what is remembered."""
        if self.memory is None:
            return self.options
        return {name: value for name, value in self.options.items() if name in inspect.signature(function).parameters}

    def start(self, images: int, labels: int, epochs: int) -> None:
        """Training calls this once, with the number of training images, before the first epoch and when it resumes."""
        self.epochs = epochs

    def weighted(
        self, logits: Tensor, targets: Tensor, image_weights: Tensor | None, rows: Tensor | None = None
    ) -> Tensor:
        """The loss with a weight for every image [B]: "mean" is then the mean of weight times loss. None: as usual."""
        given = (logits, targets) if rows is None else (logits, targets, rows)
        if image_weights is None:
            loss: Tensor = self(*given)
            return loss
        if "reduction" not in self.options:
            raise LabelwiseError(
                f"this head weighs images, which the loss {self.name!r} cannot; use the loss 'ranking'"
            )
        entries = copy.copy(self)
        entries.options = {**self.options, "reduction": "none"}
        loss = entries(*given)  # [B] or [B, N]
        weighted = loss * image_weights.view(-1, *[1] * (loss.dim() - 1))
        return reduce(weighted, torch.ones_like(weighted), self.options["reduction"])

    def set_epoch(self, epoch: int) -> None:
        """Training calls this at the start of every epoch (from 0). Most losses do not change over time."""
        self.epoch = epoch

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


class CSL(Loss, name="csl", function=csl, uses_unknown=True):
    """Class-aware selective loss for partial labels (Ben-Baruch et al., CVPR 2022)."""


class EM(Loss, name="em", function=em, memory=pseudo_negatives, uses_unknown=True):
    """Entropy maximisation with asymmetric pseudo-labels (Zhou et al., ECCV 2022).

    The authors score all images once more after each epoch. Here the scores are those of the training steps, which
    costs nothing. `negative_share=0` is the EM loss alone.
    """

    scores: Tensor  # [M, N]: the last ones of unknown labels, NaN elsewhere
    pseudo_labels: Tensor  # [M, N], below 0 where there is none
    rounds: Tensor  # how often pseudo-labels were chosen

    def start(self, images: int, labels: int, epochs: int) -> None:
        super().start(images, labels, epochs)
        self.register_buffer("scores", torch.full((images, labels), torch.nan))
        self.register_buffer("pseudo_labels", torch.full((images, labels), -1.0))
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        warmup = self.options["warmup_epochs"]
        due = epoch - warmup + 1
        if hasattr(self, "rounds") and due > int(self.rounds):  # else this epoch's are chosen already, before a restart
            options = self._options(pseudo_negatives)
            chosen = pseudo_negatives(self.scores, self.pseudo_labels, self.epochs - warmup, **options)
            self.pseudo_labels.copy_(chosen)
            self.rounds.fill_(due)

    def forward(self, logits: Tensor, targets: Tensor, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            return self._value(logits, targets)
        self.scores[rows] = logits.detach().float().sigmoid().where(targets < 0, torch.nan)
        return self._value(logits, targets, pseudo_labels=self.pseudo_labels[rows])


class ROLE(Loss, name="role", function=role, memory=adam_step, uses_unknown=True):
    """Regularised online label estimation (Cole et al., CVPR 2021). Without `start` and `rows` it is their EPR loss."""

    estimates: Tensor  # [M, N]: logits of the estimated labels
    first: Tensor  # [M, N]: Adam's moments
    second: Tensor  # [M, N]
    steps: Tensor  # of Adam
    seen: Tensor  # [M]: whether an image's known labels are part of its estimates

    def start(self, images: int, labels: int, epochs: int) -> None:
        super().start(images, labels, epochs)
        # Unknown labels start between 0.4 and 0.6, evenly in their logits, as in the authors' code.
        self.register_buffer("estimates", math.log(0.6 / 0.4) * (2 * torch.rand(images, labels) - 1))
        self.register_buffer("first", torch.zeros(images, labels))
        self.register_buffer("second", torch.zeros(images, labels))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(images, dtype=torch.bool))

    def forward(self, logits: Tensor, targets: Tensor, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            return self._value(logits, targets)
        surely = torch.logit(targets.float().clamp(0.005, 0.995))  # known labels start here
        new = (targets >= 0) & ~self.seen[rows, None]
        estimates = torch.where(new, surely, self.estimates[rows]).requires_grad_()
        loss = self._value(logits, targets, estimates=estimates)
        if self.training:
            (gradient,) = torch.autograd.grad(loss.sum(), estimates, retain_graph=True)
            self._learn(rows, estimates.detach(), gradient)
        return loss

    def _learn(self, rows: Tensor, estimates: Tensor, gradient: Tensor) -> None:
        """A step of Adam for all images, as in the authors' code: momentum also moves those of other batches."""
        self.estimates[rows], self.seen[rows] = estimates, True
        whole = torch.zeros_like(self.estimates).index_add_(0, rows, gradient)
        self.steps += 1
        options = self._options(adam_step)
        adam_step(self.estimates, whole, self.first, self.second, int(self.steps), **options)


class GPR(Loss, name="gpr", function=gpr, uses_unknown=True):
    """Generalised pseudo-label robust loss (Tran et al., ICCV 2025), which changes over the epochs."""


def list_losses() -> list[str]:
    """The names that `create` takes.

    >>> ", ".join(list_losses())
    'bce, softmax-cross-entropy, focal, asymmetric, two-way, ranking, hill, splc, csl, em, role, gpr'
    """
    import_plugins("labelwise.losses")
    return list(_LOSSES)


def loss_class(name: str) -> type[Loss]:
    """The class that `create` makes a module of.

    Args:
        name: One of `list_losses()`.

    >>> loss_class("em").remembers
    True
    """
    return _LOSSES.find(name)


def loss_options(name: str) -> list[str]:
    """The options that a loss takes.

    Args:
        name: One of `list_losses()`.

    >>> loss_options("bce")
    ['label_smoothing', 'target_threshold', 'unknown', 'unknown_weight', 'reduction']
    """
    return list(_options_of(loss_class(name)).model_fields)


def create(name: str, **options: Any) -> Loss:
    """A loss module by name. A wrong name or option raises a `LabelwiseError` that lists the right ones.

    Args:
        name: One of `list_losses()`.
        **options: Options of the loss; the function of the same name documents them (`losses.asymmetric`, ...).

    >>> create("focal", gamma=1.5)
    Focal(gamma=1.5, alpha=None, unknown='ignore', unknown_weight=1.0, reduction='mean')
    """
    return loss_class(name)(**options)


def _options_of(loss: type[Loss]) -> type[Config]:
    """The keyword options of a loss's functions as a typed config; the epoch and tensors are not options but state."""
    options: dict[str, Any] = {}
    for function in filter(None, (loss.function, loss.memory)):
        types = get_type_hints(function, include_extras=True)
        for key, parameter in inspect.signature(function).parameters.items():
            state = key in _CLOCK or Tensor in get_args(types.get(key))
            if parameter.kind is parameter.KEYWORD_ONLY and not state:
                options[key] = types[key], parameter.default
    return create_model(f"{loss.__name__}_options", __base__=Config, **options)
