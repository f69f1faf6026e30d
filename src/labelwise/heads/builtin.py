"""The heads that come with labelwise: their options and their names. A mistake in either is told without PyTorch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, PositiveInt

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


# Text-aligned heads.
class TextAlignedConfig(HeadConfig):
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
        train_projection: Also train the pooling and the projection. The towers' own fit texts of any label.
    """

    kind: Literal["text-aligned"] = "text-aligned"
    word_dim: PositiveInt | None = None
    pool: Literal["mean", "token", "attention"] = "mean"
    project: bool = True
    attention_heads: PositiveInt = 12
    feedforward: PositiveInt | None = None
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    patch_weight: float = Field(default=0.0, ge=0, le=1)
    train_projection: bool = True

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def takes_words(self) -> bool:
        return True

    @property
    def unused_options(self) -> set[str]:
        return set() if self.pool == "attention" else {"attention_heads", "feedforward", "activation"}


class RamPlusConfig(HeadConfig):
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
    word_dim: PositiveInt | None = None
    descriptions: PositiveInt = 51
    dim: PositiveInt = 768
    attention_heads: PositiveInt = 4
    feedforward: PositiveInt = 3072
    decoder_layers: PositiveInt = 2
    dropout: Probability = 0.1

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def takes_words(self) -> bool:
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
    BuiltIn(ConseConfig, {"conse": ConseConfig()}, "conse"),
    BuiltIn(Fast0TagConfig, {"fast0tag": Fast0TagConfig()}, "fast0tag"),
    BuiltIn(TextAlignedConfig, {"text-aligned": TextAlignedConfig()}, "text_aligned"),
    BuiltIn(RamPlusConfig, {"ram-plus": RamPlusConfig()}, "ram_plus"),
)
