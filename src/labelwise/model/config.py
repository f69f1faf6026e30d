"""Everything a model is beside its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from pydantic import Field

from labelwise.backbones import BackboneConfig
from labelwise.core.errors import LabelwiseError
from labelwise.heads import AnyHeadConfig
from labelwise.runtime.prediction import TaggerConfig
from labelwise.words import WordsConfig


class ModelConfig(TaggerConfig):
    """What `config.json` in a model folder holds."""

    backbone: BackboneConfig
    head: AnyHeadConfig  # its `kind` says which
    words: WordsConfig | None = None  # where word vectors came from, and those of new labels can come from
    results: dict[str, Any] = Field(default_factory=dict)  # headline metrics and the data they were measured on


def relabelled_config(config: ModelConfig, labels: Sequence[str]) -> ModelConfig:
    """`config` for other labels. Known ones keep their thresholds; the fitted ones' median stands in for the others:
    it knows on which scale this model's scores are, which 0.5 does not. Results speak of the old labels."""
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
