"""A model: backbone + head + label names + preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from labelwise import heads
from labelwise.backbones import Backbone, BackboneConfig
from labelwise.errors import LabelwiseError
from labelwise.model_config import ModelConfig
from labelwise.model_folder import read_folder, replace_folder, write_files


class LabelModel(nn.Module, ModelHubMixin):
    """images [B, 3, H, W], preprocessed -> logits [B, N]."""

    def __init__(
        self, config: ModelConfig, *, backbone: Backbone | None = None, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone or Backbone(config.backbone)
        self.head = heads.build(config.head, self.backbone.channels, len(config.labels), word_vectors)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def details(self, images: Tensor) -> heads.HeadDetails:
        """The logits, where each label's query looked, and HSQ's gates."""
        return self.head.details(self.backbone(images))

    def scores(self, logits: Tensor) -> Tensor:
        """Probabilities [B, N] from logits: independent ones, or a distribution over the labels."""
        logits = logits / self.config.temperature
        return logits.sigmoid() if self.config.task == "multi-label" else logits.softmax(dim=-1)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The score from which each label applies."""
        return self.config.thresholds or (0.5,) * len(self.labels)

    def save(self, folder: str | Path) -> None:
        """Write the model folder; a model that is there already is replaced only when the new one is complete."""
        replace_folder(Path(folder), self._save_pretrained)

    # The hub mixin adds save_pretrained and push_to_hub on top of this hook.
    def _save_pretrained(self, save_directory: Path) -> None:
        write_files(save_directory, self.config, self.state_dict())

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **hub_options: Any) -> Self:
        """A model from a model folder, a run folder or a hub id, in evaluation mode."""
        folder, config, tensors = read_folder(pretrained_model_name_or_path, **hub_options)
        model = cls(config)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise LabelwiseError(f"{str(folder)!r}: the tensors do not belong to this config: {reason}") from None
        return model.eval()


def load_model(source: str | Path, **hub_options: Any) -> LabelModel:
    """A model from a model folder, a run folder or a hub id, in evaluation mode."""
    return LabelModel.from_pretrained(source, **hub_options)


def create_model(
    backbone: str,
    head: str = "hsq",
    labels: Sequence[str] | int = (),
    *,
    weights: str = "auto",
    stage: int = -1,
    size: int | None = None,
    task: Literal["multi-label", "single-label"] = "multi-label",
    word_vectors: Tensor | None = None,
    **head_options: Any,
) -> LabelModel:
    """A model on any timm backbone.

    `weights` of the backbone: "auto" (an installed package that carries them, else timm's hub), "hub", "package", the
    path of a file, or "none" for random ones. `head_options` change any part of the head.

    >>> model = create_model("resnet10t", "ml-decoder", ["cat", "dog", "sofa"], weights="none", dim=32)
    >>> model.labels, model.config.preprocessing.size
    (('cat', 'dog', 'sofa'), 176)
    """
    names = tuple(f"label {i}" for i in range(labels)) if isinstance(labels, int) else tuple(labels)
    if not names:
        raise LabelwiseError("a model needs labels: give their names (or their number)")
    if word_vectors is not None:
        head_options = {"word_dim": word_vectors.shape[-1], **head_options}
    # The head's options are checked before the backbone's weights are fetched: a typo should not cost a download.
    head_config = heads.with_options(heads.preset(head), head_options, f"head {head!r}")
    built = Backbone(BackboneConfig.parse({"name": backbone, "stage": stage, "size": size}, "backbone"), weights)
    values = {
        "backbone": built.config,
        "head": head_config,
        "labels": names,
        "preprocessing": built.preprocessing(),
        "task": task,
    }
    return LabelModel(ModelConfig.parse(values, "model"), backbone=built, word_vectors=word_vectors)
