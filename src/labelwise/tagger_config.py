"""From logits to labels: all that a network which runs somewhere needs beside itself to be a tagger."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from labelwise.config import Config
from labelwise.errors import LabelwiseError
from labelwise.preprocessing import Preprocessing


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
    def limits(self) -> tuple[float, ...]:
        """The score from which each label applies, [N]."""
        return self.thresholds or (0.5,) * len(self.labels)

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, N] from logits: independent ones, or a distribution over the labels.

        >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing(), temperature=2.0)
        >>> config.scores(np.float32([[0.0, 4.0]])).round(4).tolist()
        [[0.5, 0.8808000087738037]]
        """
        # Doubles, rounded at the end: thresholds were fitted to doubles, and a score equal to one has to pass it.
        z = (logits.astype(np.float64) - self.offset) / self.temperature
        if self.task == "multi-label":
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                log_scores = -np.logaddexp(0, -z)
        else:
            z = z - z.max(axis=1, keepdims=True)
            log_scores = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return np.exp(log_scores).astype(np.float32)


def check_threshold(threshold: float, task: str) -> None:
    """An error if `threshold` cannot be one for all labels."""
    if not 0 <= threshold <= 1:
        raise LabelwiseError(f"a threshold of {threshold:g} is out of range; scores lie between 0 and 1")
    if task == "single-label":
        raise LabelwiseError("a single-label model names its best label, always: leave the threshold out")
