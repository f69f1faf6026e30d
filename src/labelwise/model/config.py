"""The config of a model: everything besides its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from pydantic import Field

from labelwise.backbones.config import BackboneConfig
from labelwise.core.errors import LabelwiseError
from labelwise.heads.registry import AnyHeadConfig
from labelwise.runtime.prediction import TaggerConfig
from labelwise.words.config import WordsConfig


class ModelConfig(TaggerConfig):
    """The content of `config.json` in a model folder: a `TaggerConfig`, and what building the network needs.

    Attributes:
        backbone: The timm backbone.
        head: The head; its `kind` says which.
        words: Where word vectors came from; those of new labels come from there, too.
        results: Headline metrics of the training, and the data they were measured on.
    """

    backbone: BackboneConfig
    head: AnyHeadConfig
    words: WordsConfig | None = None
    results: dict[str, Any] = Field(default_factory=dict)


def relabelled_config(config: ModelConfig, labels: Sequence[str]) -> ModelConfig:
    """`config` for other labels. Known labels keep their thresholds; new ones get the median, which fits the scale of
    this model's scores better than 0.5. Results of other labels are dropped."""
    if isinstance(labels, str):  # a sequence of letters
        raise LabelwiseError(f"labels must be a list of names: [{labels!r}]")
    thresholds = None
    if config.thresholds is not None:
        fitted = dict(zip(config.labels, config.thresholds, strict=True))
        usual = median(config.thresholds)
        thresholds = tuple(fitted.get(label, usual) for label in labels)
    results = config.results if set(labels) == set(config.labels) else {}
    changes = {"labels": tuple(labels), "thresholds": thresholds, "results": results}
    return ModelConfig.parse({**dict(config), **changes}, "labels")
