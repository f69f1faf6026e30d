"""What a model says about one picture: labels with scores, and where it looked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, field_validator, model_validator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.decode import FoundImage, decode
from labelwise.data.images import Encoded
from labelwise.data.preprocessing import Preprocessing
from labelwise.runtime.sessions import Floats

Doubles = NDArray[np.float64]
QueryMaps = tuple[Floats, NDArray[np.int64]]  # where each query looked, [..., K, H, W]; each label's query, [N]


class TaggerConfig(Config):
    """The part of a model's config that an exported model needs, too; it knows nothing of PyTorch."""

    labels: tuple[str, ...] = Field(min_length=1)
    preprocessing: Preprocessing
    task: Literal["multi-label", "single-label"] = "multi-label"  # scores are sigmoids, or one softmax
    # Calibration: a score is the sigmoid of (logit - offset) / temperature. Asymmetric losses push all logits up
    temperature: float = Field(default=1.0, gt=0)
    offset: float = 0.0
    thresholds: tuple[float, ...] | None = None  # a label applies where its score reaches it; None: 0.5 for all

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        repeated = [label for label, times in Counter(labels).items() if times > 1]
        if repeated:
            raise ValueError(f"these names occur more than once: {', '.join(repeated[:5])}")
        return labels

    @model_validator(mode="after")
    def _one_threshold_per_label(self) -> Self:
        if self.thresholds is not None and len(self.thresholds) != len(self.labels):
            raise ValueError(f"{len(self.thresholds)} thresholds for {len(self.labels)} labels")
        return self

    @property
    def label_thresholds(self) -> tuple[float, ...]:
        """The score from which each label applies, [N]: the fitted ones, else 0.5."""
        return self.thresholds or (0.5,) * len(self.labels)


def probabilities(logits: Floats, config: TaggerConfig) -> Doubles:
    """Scores [..., N] from logits [..., N]: independent probabilities, or a distribution over the labels.

    Everything that shows, compares or fits scores uses this function. Double precision: near 1, single precision would
    make ties of different scores.

    >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing(), temperature=2.0)
    >>> probabilities(np.float32([[0.0, 4.0]]), config).round(4).tolist()
    [[0.5, 0.8808]]
    """
    z = (logits.astype(np.float64) - config.offset) / config.temperature
    if config.task == "multi-label":
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            log_scores = -np.logaddexp(0, -z)
    else:
        z = z - z.max(axis=-1, keepdims=True)
        log_scores = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    scores: Doubles = np.exp(log_scores)
    return scores


def decide(scores: Doubles, config: TaggerConfig) -> NDArray[np.bool_]:
    """Which labels apply, [..., N], from `probabilities` [..., N].

    A label applies if its score reaches its threshold; a single-label model gives its best label, always. Predictions,
    metrics, the server and reports all decide by this function.

    >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing(), thresholds=(0.3, 0.6))
    >>> decide(np.array([0.3, 0.5]), config).tolist()
    [True, False]
    """
    if config.task == "single-label":
        best: NDArray[np.bool_] = scores.argmax(axis=-1)[..., None] == np.arange(scores.shape[-1])
        return best
    passing: NDArray[np.bool_] = scores >= np.array(config.label_thresholds)
    return passing


def check_threshold(threshold: float, task: str) -> None:
    """An error if `threshold` cannot be one for all labels."""
    if not 0 <= threshold <= 1:
        raise LabelwiseError(f"a threshold of {threshold:g} is out of range; scores lie between 0 and 1")
    if task == "single-label":
        raise LabelwiseError("a single-label model names its best label, always: leave the threshold out")


class Prediction:
    """What the model says about one picture.

    `labels` and their `scores` are those that apply, best first: each reaches its own threshold (a single-label model
    gives its best label, always). A picture that cannot be decoded has an `error` and no labels.
    """

    def __init__(
        self,
        config: TaggerConfig,
        source: FoundImage,
        scores: Doubles | None,
        error: str | None = None,
        maps: Callable[[FoundImage], QueryMaps] | None = None,
    ) -> None:
        # The path as given, the name of what was given as bytes, or the image itself.
        self.image: str | Image.Image = source.name if isinstance(source, Encoded) else source
        self.error = error
        self._config, self._source, self._find_maps = config, source, maps
        self._scores = np.zeros(0) if scores is None else scores  # [N], in the order of the model's labels

    @cached_property
    def _chosen(self) -> list[int]:
        """The labels that apply, as numbers, best first."""
        if self.error is not None:
            return []
        passing = np.flatnonzero(decide(self._scores, self._config))
        return [int(i) for i in passing[np.argsort(-self._scores[passing], kind="stable")]]

    @property
    def labels(self) -> list[str]:
        return [self._config.labels[i] for i in self._chosen]

    @property
    def scores(self) -> list[float]:
        return [float(self._scores[i]) for i in self._chosen]

    @property
    def all_scores(self) -> dict[str, float]:
        """Every label's score, best first."""
        order = np.argsort(-self._scores, kind="stable")
        return {self._config.labels[i]: float(self._scores[i]) for i in order}

    @property
    def thresholds(self) -> dict[str, float]:
        return dict(zip(self._config.labels, self._config.label_thresholds, strict=True))

    def choose(self, top: int | None = None, threshold: float | None = None) -> dict[str, float]:
        """Labels with their scores, best first: those that apply, or by another choice for this picture.

        `threshold` is one for all labels; `top` alone gives the K best whatever their thresholds, with `threshold` at
        most K of those that reach it.
        """
        if top is not None and top < 1:
            raise LabelwiseError(f"the {top} best labels cannot be given; ask for 1 or more")
        if threshold is not None:
            check_threshold(threshold, self._config.task)
            chosen = {label: score for label, score in self.all_scores.items() if score >= threshold}
        else:
            chosen = dict(zip(self.labels, self.scores, strict=True)) if top is None else self.all_scores
        return dict(list(chosen.items())[:top])

    def to_dict(
        self, *, top: int | None = None, threshold: float | None = None, all_scores: bool = False
    ) -> dict[str, Any]:
        """For JSON: `image` (null for a picture that has no name), and `labels` of `choose` or the `error`."""
        about: dict[str, Any] = {"image": self.image if isinstance(self.image, str) else None}
        if self.error is not None:
            return about | {"error": self.error}
        about["labels"] = self.choose(top, threshold)
        return about | {"all_scores": self.all_scores} if all_scores else about

    @property
    def preprocessing(self) -> Preprocessing:
        """How the picture was fitted into the model's square input: says what part of it `attention` covers."""
        return self._config.preprocessing

    def picture(self) -> Image.Image:
        """The picture itself: upright 8-bit RGB."""
        return decode(self._source)

    def attention(self, label: str) -> Floats:
        """Where the model looked for `label`, [H, W], sums to 1.

        The map covers what the model saw of the picture: all of it, unless the model's preprocessing crops or pads.
        The picture runs through the model again on the first call.
        """
        labels = self._config.labels
        if label not in labels:
            raise unknown_name("label", label, labels)
        maps, label_query = self._maps
        chosen: Floats = maps[label_query[labels.index(label)]]
        return chosen

    @cached_property
    def _maps(self) -> QueryMaps:
        """The maps of all queries, [K, H, W], and the query of each label, [N]."""
        if self.error is not None:
            raise LabelwiseError(self.error)
        if self._find_maps is None:
            raise LabelwiseError("this prediction has no model that could show its attention")
        return self._find_maps(self._source)

    def __repr__(self) -> str:
        said = self.error or ", ".join(f"{n} {s:.2f}" for n, s in zip(self.labels, self.scores, strict=True))
        return f"<Prediction {self.image!s}: {said or 'no label'}>"
