"""Everything a model is beside its tensors."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from labelwise.backbones import BackboneConfig
from labelwise.config import Config
from labelwise.heads.config import CsraConfig, GapConfig, QueryHeadConfig
from labelwise.preprocessing import Preprocessing


class ModelConfig(Config):
    """What `config.json` in a model folder holds."""

    backbone: BackboneConfig
    head: Annotated[QueryHeadConfig | GapConfig | CsraConfig, Field(discriminator="kind")]
    labels: tuple[str, ...] = Field(min_length=1)
    preprocessing: Preprocessing
    task: Literal["multi-label", "single-label"] = "multi-label"  # scores are sigmoids, or one softmax
    temperature: float = Field(default=1.0, gt=0)  # logits are divided by it before they become scores (calibration)
    thresholds: tuple[float, ...] | None = None  # a label applies where its score reaches it; None: 0.5 for all
    results: dict[str, Any] = Field(default_factory=dict)  # headline metrics and the data they were measured on

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
