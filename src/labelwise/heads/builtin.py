"""The heads that come with labelwise: their options and their names. A mistake in either is told without PyTorch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from labelwise.heads.config import (
    ClassifierConfig,
    DecoderConfig,
    ExpertsConfig,
    HeadConfig,
    Probability,
    QueriesConfig,
    QueryHeadConfig,
    TokensConfig,
)


class GapConfig(HeadConfig):
    """Global average pooling and a linear layer: the baseline.

    Args:
        dropout: Before the linear layer.
    """

    kind: Literal["gap"] = "gap"
    dropout: Probability = 0.0


class CsraConfig(HeadConfig):
    """Class-specific residual attention (Zhu & Wu, ICCV 2021).

    Args:
        residual_weight: lambda of eq. 5.
        residual_heads: How many temperatures (section 3.5).
    """

    kind: Literal["csra"] = "csra"
    residual_weight: float = Field(default=0.1, ge=0)
    residual_heads: Literal[1, 2, 4, 6, 8] = 1

    @property
    def has_attention(self) -> bool:
        return True


class ConseConfig(HeadConfig):
    """CONSE (Norouzi et al., ICLR 2014), a zero-shot baseline: word vectors of seen labels, mixed by a classifier.

    Args:
        word_dim: Length of the word vectors.
        top: T, how many of the most probable labels are mixed.
        seen_labels: How many labels the classifier knows. None: all.
    """

    kind: Literal["conse"] = "conse"
    word_dim: PositiveInt | None = None
    top: PositiveInt = 10
    seen_labels: PositiveInt | None = None

    @property
    def takes_words(self) -> bool:
        return True


class Fast0TagConfig(HeadConfig):
    """Fast0Tag (Zhang, Gong & Shah, CVPR 2016), a zero-shot baseline: a direction in the space of word vectors.

    Args:
        word_dim: Length of the word vectors.
        hidden: Widths of hidden layers. (): the paper's linear map; (8192, 2048): its network.
        dropout: After each hidden layer.
    """

    kind: Literal["fast0tag"] = "fast0tag"
    word_dim: PositiveInt | None = None
    hidden: tuple[PositiveInt, ...] = ()
    dropout: Probability = 0.0

    @property
    def takes_words(self) -> bool:
        return True


# ---- Graphs of the labels: how they correlate


class LabelGraphConfig(HeadConfig):
    """What the configs of heads on words and on statistics of the training table have in common.

    Args:
        word_dim: Length of the word vectors.
    """

    word_dim: PositiveInt | None = None

    @property
    def takes_words(self) -> bool:
        return True

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
        steps: T, how often labels exchange messages.
    """

    kind: Literal["ssgrl"] = "ssgrl"
    dim: PositiveInt = 1024
    steps: PositiveInt = 3

    @property
    def has_attention(self) -> bool:
        return True


class AddGcnConfig(HeadConfig):
    """ADD-GCN (Ye et al., ECCV 2020): a graph of the labels that is made anew for every image.

    Args:
        dim: Width of the labels' vectors.
    """

    kind: Literal["add-gcn"] = "add-gcn"
    dim: PositiveInt = 1024

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def labels_interact(self) -> bool:
        return True


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


class TdrgConfig(HeadConfig):
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

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def labels_interact(self) -> bool:
        return True


_HSQ = QueryHeadConfig(
    tokens=TokensConfig(encoder_layers=1),
    decoder=DecoderConfig(decoder_layers=2, feedforward_ratio=2),
    experts=ExpertsConfig(experts="hybrid"),
)

QUERY_PRESETS = {
    "transformer-decoder": QueryHeadConfig(
        tokens=TokensConfig(token_relu=True),
        decoder=DecoderConfig(first_block="self-attention", feedforward=2048),
    ),
    "q2l": QueryHeadConfig(
        tokens=TokensConfig(positions="keys", encoder_layers=1),
        decoder=DecoderConfig(
            decoder_layers=2, query_role="position", final_norm=True, attention_heads=4, layer_init="xavier"
        ),
    ),
    "ml-decoder": QueryHeadConfig(
        tokens=TokensConfig(dim=768, token_relu=True),
        queries=QueriesConfig(queries="random", groups=100),
        decoder=DecoderConfig(first_block="identity", feedforward=2048),
        classifier=ClassifierConfig(classifier_init="xavier"),
    ),
    # One body, three kinds of experts: what differs between these is due to the experts.
    "hsq": _HSQ,
    "hsq-linear": _HSQ.model_copy(update={"experts": ExpertsConfig(experts="linear")}),
    "hsq-baseline": _HSQ.model_copy(update={"experts": ExpertsConfig()}),
}


class BuiltIn(NamedTuple):
    config: type[HeadConfig]
    presets: dict[str, HeadConfig]
    module: str  # in labelwise.heads: its import registers the class


# In the order in which they are listed.
BUILT_IN = (
    BuiltIn(GapConfig, {"gap": GapConfig()}, "gap"),
    BuiltIn(CsraConfig, {"csra": CsraConfig()}, "csra"),
    BuiltIn(QueryHeadConfig, {**QUERY_PRESETS}, "query_head"),
    BuiltIn(MlGcnConfig, {"ml-gcn": MlGcnConfig()}, "ml_gcn"),
    BuiltIn(SsgrlConfig, {"ssgrl": SsgrlConfig()}, "ssgrl"),
    BuiltIn(AddGcnConfig, {"add-gcn": AddGcnConfig()}, "add_gcn"),
    BuiltIn(KssnetConfig, {"kssnet": KssnetConfig()}, "kssnet"),
    BuiltIn(CmaConfig, {"cma": CmaConfig()}, "cma"),
    BuiltIn(TdrgConfig, {"tdrg": TdrgConfig()}, "tdrg"),
    BuiltIn(ConseConfig, {"conse": ConseConfig()}, "conse"),
    BuiltIn(Fast0TagConfig, {"fast0tag": Fast0TagConfig()}, "fast0tag"),
)
