"""Configs of the heads on a graph of the labels, and how labels correlate. No PyTorch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from labelwise.heads.config import Probability, RelatingHeadConfig
from labelwise.heads.word_configs import WordHeadConfig


class LabelGraphConfig(WordHeadConfig):
    """Of heads on words and on statistics of the training table."""

    @property
    def takes_cooccurrence(self) -> bool:
        return True

    @property
    def labels_interact(self) -> bool:
        return True


class MlGcnConfig(LabelGraphConfig):
    """ML-GCN (Chen et al., CVPR 2019): a graph network on words makes the classifiers.

    Args:
        word_dim: Length of the word vectors; 300 in the paper.
        hidden: Widths of the graph layers before the last one.
        edge_threshold: tau of eq. 7: label j is a neighbour of i from this P(j | i) on.
        neighbour_weight: p of eq. 8: how much of a label comes from its neighbours.
    """

    kind: Literal["ml-gcn"] = "ml-gcn"
    hidden: tuple[PositiveInt, ...] = (1024,)
    edge_threshold: float = Field(default=0.4, gt=0, le=1)
    neighbour_weight: float = Field(default=0.2, ge=0, lt=1)


class SsgrlConfig(LabelGraphConfig):
    """SSGRL (Chen et al., ICCV 2019): words find each label's features, a gated graph network relates them.

    Args:
        word_dim: Length of the word vectors; 300 in the paper.
        dim: d_1 of eq. 3, where features and words meet.
        graph_dim: Width of the graph network. None: that of the feature map, as in the paper, at a cost that grows with
            its square; else a linear layer reduces the features first.
        steps: T, how often labels exchange messages.
    """

    kind: Literal["ssgrl"] = "ssgrl"
    dim: PositiveInt = 1024
    graph_dim: PositiveInt | None = None
    steps: PositiveInt = 3

    @property
    def has_attention(self) -> bool:
        return True


class AddGcnConfig(RelatingHeadConfig):
    """ADD-GCN (Ye et al., ECCV 2020): a graph of the labels that is made anew for every image.

    Args:
        dim: Width of the labels' vectors.
    """

    kind: Literal["add-gcn"] = "add-gcn"
    dim: PositiveInt = 1024


class KssnetConfig(LabelGraphConfig):
    """KSSNet (Wang et al., AAAI 2020): a graph of statistics superimposed on one of knowledge.

    Args:
        word_dim: Length of the word vectors.
        hidden: Widths of the graph layers before the lateral connection.
        knowledge_weight: lambda, the share of the knowledge graph; the rest is co-occurrence.
        edge_threshold: tau: edges below it are dropped. As in the authors' code.
        neighbour_weight: eta: how much of a label comes from its neighbours. As in the authors' code.
    """

    kind: Literal["kssnet"] = "kssnet"
    hidden: tuple[PositiveInt, ...] = (256, 512, 1024)
    knowledge_weight: float = Field(default=0.5, ge=0, le=1)
    edge_threshold: float = Field(default=0.03, ge=0, le=1)
    neighbour_weight: float = Field(default=0.4, ge=0, lt=1)


class CmaConfig(LabelGraphConfig):
    """Cross-modality attention of MS-CMA (You et al., AAAI 2020): label embeddings attend to the map by cosine.

    Args:
        word_dim: Length of the word vectors.
        dim: Length of the label embeddings.
        steps: How long the embeddings are trained, when the head is made.
        relaxation: alpha: pairs of labels that are rarer together are only kept apart, not placed.
    """

    kind: Literal["cma"] = "cma"
    dim: PositiveInt = 256
    steps: NonNegativeInt = 300
    relaxation: float = Field(default=0.1, ge=0, le=1)

    @property
    def has_attention(self) -> bool:
        return True


class TdrgConfig(RelatingHeadConfig):
    """TDRG (Zhao et al., ICCV 2021): a transformer on the map, and a graph of the labels that it guides.

    Args:
        dim: Width of the transformer, and half of the width of the labels' vectors.
        encoder_layers: Layers of the transformer.
        attention_heads: Heads of its attention; they divide dim.
        feedforward: Hidden width of its feed-forward blocks.
        dropout: Rate in the transformer.
        structural_weight: Of the transformer's answer; the graph's has the rest.
    """

    kind: Literal["tdrg"] = "tdrg"
    dim: PositiveInt = 512
    encoder_layers: NonNegativeInt = 3
    attention_heads: PositiveInt = 4
    feedforward: PositiveInt = 2048
    dropout: Probability = 0.0
    structural_weight: float = Field(default=0.7, ge=0, le=1)
