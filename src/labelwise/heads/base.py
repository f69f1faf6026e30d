"""What every head is: a module from feature maps to logits, with a config (`heads/config.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError
from labelwise.heads.config import HeadConfig


@dataclass(frozen=True)
class HeadDetails:
    """A head's logits with what led to them.

    Args:
        logits: [B, N].
        label_query: [N], the query that answers for each label.
        attention_layers: For each decoder layer [B, heads, K, H, W]; sums to 1 over H, W.
        gates: For each expert layer [B, K, n_t + n_s]: the query's own experts first, then the shared ones.
        shared: [B, K, d_o], HSQ's O_s, if `shared_stream` is on.
    """

    logits: Tensor
    label_query: Tensor
    attention_layers: tuple[Tensor, ...] = ()
    gates: tuple[Tensor, ...] = ()
    shared: Tensor | None = None

    @property
    def attention(self) -> Tensor:
        """The last layer's cross-attention, averaged over heads: [B, K, H, W]."""
        return self.attention_layers[-1].mean(dim=1)

    @property
    def mean_attention(self) -> Tensor | None:
        """Every layer's cross-attention, averaged over heads: [B, layers, K, H, W]; None for a head without."""
        means = [weights.mean(dim=1) for weights in self.attention_layers]
        return torch.stack(means, dim=1) if means else None

    @property
    def stacked_gates(self) -> Tensor | None:
        """Every expert layer's gates: [B, layers, K, n_t + n_s]; None for a head without."""
        return torch.stack(self.gates, dim=1) if self.gates else None

    @property
    def label_attention(self) -> Tensor:
        """`attention` of the query that answers for each label: [B, N, H, W]."""
        return self.attention[:, self.label_query]


@dataclass(frozen=True)
class LossTerms:
    """What a training step makes its loss of.

    Args:
        logits: [B, M].
        targets: [B, M].
        image_weights: [B], how much each image counts. None: all the same.
        penalty: Added to the loss.
    """

    logits: Tensor
    targets: Tensor
    image_weights: Tensor | None = None
    penalty: Tensor | float = 0.0


class Head(nn.Module):
    """The base class of heads: a map [B, C, H, W] or tokens [B, T, C] -> logits [B, N].

    A head of your own is a subclass with `__init__` and `forward`, registered with its config by `register_head`.
    `as_tokens` takes both forms of input. Override `details` if there is more to show than logits, `loss_terms` if the
    method has a loss of its own, and `fold_constants` if a part of the work does not depend on the image. If the config
    says `takes_words`, `__init__` also gets `word_vectors` and keeps them as a buffer (`checked_words`); if it says
    `takes_cooccurrence`, it gets `cooccurrence` and keeps the graph that it makes of them as a buffer
    (`heads/graphs.py`). Buffers are saved, so a loaded model needs neither a source of words nor a table. If it says
    `takes_known`, `forward` and `details` also take `known` [B, N]: 1 for labels that are known to be there, 0 for
    absent ones, -1 for all others.

    Args:
        config: The head's options.
        in_features: C, the channels of the feature map.
        labels: N, the number of labels.
    """

    config: HeadConfig
    word_vectors: Tensor | None  # [N, d_w]; None: the head does not use words, or they are folded in

    def __init__(self, config: HeadConfig, in_features: int, labels: int) -> None:
        super().__init__()
        self.config, self.in_features, self.labels = config, in_features, labels
        self.register_buffer("word_vectors", None)

    @property
    def has_attention(self) -> bool:
        return self.config.has_attention

    @property
    def has_experts(self) -> bool:
        return self.config.has_experts

    @property
    def takes_words(self) -> bool:
        return self.config.takes_words

    @property
    def takes_known(self) -> bool:
        return self.config.takes_known

    @property
    def label_query(self) -> Tensor:
        """The query that answers for each label, [N]."""
        like = next(chain(self.parameters(), self.buffers()), None)
        return torch.arange(self.labels, device=None if like is None else like.device)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def training_targets(self, targets: Tensor) -> Tensor:
        """The targets of what `forward` returns in this mode, from those of the labels [B, N]: a head may answer more
        in training than it is asked for (random queries)."""
        return targets

    def draw_known(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What a head that takes `known` is told in a training step, and the targets left to learn (`mask_labels`)."""
        return mask_labels(targets)

    def loss_terms(self, outputs: Tensor, targets: Tensor) -> LossTerms:
        """What the loss gets of `forward`'s outputs in training and the labels' targets [B, N]. A head with losses of
        its own returns what they need as further columns, and weighs images or adds a penalty here."""
        return LossTerms(outputs, self.training_targets(targets))

    def details(self, x: Tensor) -> HeadDetails:
        """The logits with attention and gates, if the head has any."""
        return HeadDetails(self(x), self.label_query)

    def attended(self, logits: Tensor, attention: Tensor, x: Tensor) -> HeadDetails:
        """`details` of a head with one attention over the tokens of `x` for each label: [B, N, T], sums to 1 over T."""
        return HeadDetails(logits, self.label_query, attention_layers=(on_grid(attention, x)[:, None],))

    def fold_constants(self, tokens: int) -> None:
        """Compute once, in place, what does not depend on the image. `heads.optimize` calls it on a copy in evaluation
        mode, which need not be trained or saved; `tokens` is the number of tokens to be fastest for."""

    def relabelled(self, before: Sequence[str], after: Sequence[str], word_vectors: Tensor) -> Self:
        """A head for the labels `after` with these weights (the same memory, no copy).

        Args:
            before: The names of this head's labels.
            after: Any names, in any number and order.
            word_vectors: Theirs, [len(after), d_w].
        """
        return self._rebuilt(self.config, len(after), word_vectors)

    def relabelling_words(self) -> Tensor:
        """The word vectors [N, d_w] of today's labels; raises if the labels cannot change."""
        self.config.require_new_labels("a change of labels")
        if self.word_vectors is None:
            raise LabelwiseError("an optimized head is fixed to its labels; change them first, then optimize")
        return self.word_vectors

    def _rebuilt(
        self,
        config: HeadConfig,
        labels: int,
        word_vectors: Tensor,
        buffers: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Self:
        """`buffers` are arguments of the class too; `state` replaces further tensors of this head."""
        known = self.relabelling_words()
        if word_vectors.shape != (labels, known.shape[1]):
            raise LabelwiseError(f"word_vectors must be {[labels, known.shape[1]]}, not {list(word_vectors.shape)}")
        buffers = {**(buffers or {}), "word_vectors": word_vectors.to(known)}
        make: Callable[..., Self] = type(self)
        # On the meta device nothing is allocated or drawn at random: a new list of labels costs milliseconds.
        with torch.device("meta"):
            other = make(config, self.in_features, labels, **buffers)
        other.load_state_dict({**self.state_dict(), **(state or {}), **buffers}, assign=True)
        return other.train(self.training)


class AttendingHead(Head):
    """A head that weighs the tokens anew for each label, and shows these weights."""

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [B, N], and the weights of the tokens [B, N, T], not negative."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)[0]

    def details(self, x: Tensor) -> HeadDetails:
        logits, weights = self.run(x)
        return self.attended(logits, as_attention(weights), x)


@dataclass
class Recorder:
    """Handed down through the modules of a head; each adds what `details` will show."""

    attention: list[Tensor] = field(default_factory=list)  # [B, heads, K, T]
    gates: list[Tensor] = field(default_factory=list)  # [K, B, n_t + n_s]
    shared: Tensor | None = None  # [K, B, d_o]


def as_tokens(x: Tensor, in_features: int) -> tuple[Tensor, tuple[int, int] | None]:
    """Tokens [B, T, C] of a map [B, C, H, W] or of tokens, and the grid (H, W) they come from if it is known.

    >>> tokens, grid = as_tokens(torch.zeros(2, 8, 3, 4), in_features=8)
    >>> list(tokens.shape), grid
    ([2, 12, 8], (3, 4))
    """
    if x.dim() == 4 and x.shape[1] == in_features:
        return x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])
    if x.dim() == 3 and x.shape[2] == in_features:
        return x, None
    raise LabelwiseError(
        f"this head takes a map [B, {in_features}, H, W] or tokens [B, T, {in_features}], not {list(x.shape)}"
    )


def on_grid(weights: Tensor, x: Tensor) -> Tensor:
    """Weights of tokens [..., T] as maps [..., H, W] of the input `x`; tokens [B, T, C] are a single row."""
    maps: Tensor = weights.unflatten(-1, (x.shape[2], x.shape[3]) if x.dim() == 4 else (1, x.shape[1]))
    return maps


def as_attention(weights: Tensor) -> Tensor:
    """Weights of tokens [B, N, T], not negative, so that each label's add up to 1; where all are 0, the same each."""
    weights = weights + torch.finfo(torch.float32).eps
    return weights / weights.sum(dim=2, keepdim=True)


def as_map(x: Tensor, in_features: int) -> Tensor:
    """A map [B, C, H, W], checked: for heads to which it matters where a token is."""
    if x.dim() != 4 or x.shape[1] != in_features:
        raise LabelwiseError(
            f"this head needs to know where tokens are: give it the map [B, {in_features}, H, W], not {list(x.shape)}"
        )
    return x


def mask_labels(targets: Tensor, least_unknown: float = 0.25) -> tuple[Tensor, Tensor]:
    """C-Tran's label masks (section 3.3): of each image a random number of labels is known, the others are to learn.

    Args:
        targets: [B, N]: 1 present, 0 absent, -1 unknown. Soft ones (of mixed images) are never known.
        least_unknown: The share of labels that is masked at least.

    Returns:
        `known` and the new targets, both [B, N]: every label is -1 in one of them.

    >>> known, targets = mask_labels(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    >>> torch.maximum(known, targets).tolist(), torch.minimum(known, targets).tolist()
    ([[1.0, 0.0, 0.0, 1.0]], [[-1.0, -1.0, -1.0, -1.0]])
    """
    images, labels = targets.shape
    most = int(labels * (1 - least_unknown))
    number = torch.randint(0, most + 1, (images, 1), device=targets.device)
    order = torch.rand(targets.shape, device=targets.device).argsort(dim=1).argsort(dim=1)
    told = (order < number) & ((targets == 0) | (targets == 1))
    return targets.where(told, -1), targets.where(~told, -1)


def checked_words(vectors: Tensor | None, labels: int, word_dim: int | None) -> Tensor:
    """The word vectors [N, d_w] to keep as a buffer: as given, or zeros to be filled from a state dict."""
    if word_dim is None:
        raise LabelwiseError("heads on words need word_vectors, a tensor [labels, length] with one row for each label")
    if vectors is None:
        return torch.zeros(labels, word_dim)
    if vectors.shape != (labels, word_dim):
        raise LabelwiseError(f"word_vectors must be [{labels}, {word_dim}], not {list(vectors.shape)}")
    if has_values(vectors) and not vectors.isfinite().all():
        raise LabelwiseError("some of word_vectors are not finite numbers")
    return vectors.detach().float().clone()


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor can be looked at: neither on the meta device nor one of PyTorch's fake tensors."""
    return not tensor.is_meta and type(tensor) in (Tensor, nn.Parameter)
