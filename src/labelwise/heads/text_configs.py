"""Configs of the heads whose labels are texts: towers of CLIP and SigLIP, RAM++. No PyTorch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from labelwise.heads.config import Probability
from labelwise.heads.word_configs import RegionHeadConfig


class TextAlignedConfig(RegionHeadConfig):
    """Similarity of image and patches to the labels' texts (CLIP, SigLIP), with trained prompts.

    Args:
        word_dim: Length of the text embeddings.
        pool: What makes the image's vector. mean: the average of the patches; token: the class token (CLIP), which the
            backbone gives with every patch; attention: a learned query that reads the patches (SigLIP).
        project: Whether a linear layer leads to the space of the texts. SigLIP's towers have none.
        attention_heads: Of `pool=attention`.
        feedforward: Hidden width of its MLP. None: four times the channels.
        activation: Of its MLP.
        patch_weight: w, the share of the patches in a logit; learned, and at first this. 0 starts with exactly the
            answers of the towers.
        prompts: What is trained of the labels' texts. residual: something added to each embedding (TaskRes); coop:
            vectors in place of the words before a label's name, through the text tower in every step (CoOp); dualcoop:
            the same twice, for a text that fits and one that does not (DualCoOp).
        context: M, how many vectors come before the name, random at first. None: those of the prompt's own words
            ("a photo of a"); DualCoOp's second context has as many, but is random at first.
        class_context: Whether each label has its own.
        context_dim: Length of the text tower's word vectors; known from the tower.
        train_projection: Also train the pooling and the projection. The towers' own fit texts of any label.
    """

    kind: Literal["text-aligned"] = "text-aligned"
    pool: Literal["mean", "token", "attention"] = "mean"
    project: bool = True
    attention_heads: PositiveInt = 12
    feedforward: PositiveInt | None = None
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    patch_weight: float = Field(default=0.0, ge=0, le=1)
    prompts: Literal["residual", "coop", "dualcoop"] = "residual"
    context: PositiveInt | None = None
    class_context: bool = False
    context_dim: PositiveInt | None = None
    train_projection: bool = True

    @property
    def trains_text(self) -> bool:
        return self.prompts != "residual"

    @property
    def unused_options(self) -> set[str]:
        pool = set() if self.pool == "attention" else {"attention_heads", "feedforward", "activation"}
        return pool | (set() if self.trains_text else {"context", "class_context", "context_dim"})


class RamPlusConfig(RegionHeadConfig):
    """RAM++ (Huang et al. 2023): descriptions of tags, mixed by the image, read the map. For its released weights.

    Args:
        word_dim: Length of the text embeddings of all descriptions of a label, one after the other.
        descriptions: How many a label has. With 1 it is RAM.
        dim: D, the width of the decoder.
        attention_heads: Of the cross-attention; they divide D.
        feedforward: Hidden width of the feed-forward blocks.
        decoder_layers: How often tags read the map.
        dropout: After attention and feed-forward.
    """

    kind: Literal["ram-plus"] = "ram-plus"
    descriptions: PositiveInt = 51
    dim: PositiveInt = 768
    attention_heads: PositiveInt = 4
    feedforward: PositiveInt = 3072
    decoder_layers: PositiveInt = 2
    dropout: Probability = 0.1
