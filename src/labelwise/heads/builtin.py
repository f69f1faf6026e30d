"""The heads that come with labelwise: their options and their names. A mistake in either is told without PyTorch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from labelwise.heads.attention_configs import CTranConfig, McarConfig, SrnConfig, SstConfig
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
from labelwise.heads.graph_configs import AddGcnConfig, CmaConfig, KssnetConfig, MlGcnConfig, SsgrlConfig, TdrgConfig
from labelwise.heads.text_configs import RamPlusConfig, TextAlignedConfig
from labelwise.heads.word_configs import (
    AttentionPerClusterConfig,
    AttentionPerLabelConfig,
    BiamConfig,
    ConseConfig,
    Fast0TagConfig,
    LesaConfig,
    SdlConfig,
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
    BuiltIn(CTranConfig, {"c-tran": CTranConfig()}, "c_tran"),
    BuiltIn(SrnConfig, {"srn": SrnConfig()}, "srn"),
    BuiltIn(SstConfig, {"sst": SstConfig()}, "sst"),
    BuiltIn(McarConfig, {"mcar": McarConfig()}, "mcar"),
    BuiltIn(ConseConfig, {"conse": ConseConfig()}, "conse"),
    BuiltIn(Fast0TagConfig, {"fast0tag": Fast0TagConfig()}, "fast0tag"),
    BuiltIn(AttentionPerLabelConfig, {"attention-per-label": AttentionPerLabelConfig()}, "attention_per_label"),
    BuiltIn(AttentionPerClusterConfig, {"attention-per-cluster": AttentionPerClusterConfig()}, "attention_per_cluster"),
    BuiltIn(LesaConfig, {"lesa": LesaConfig()}, "lesa"),
    BuiltIn(BiamConfig, {"biam": BiamConfig()}, "biam"),
    BuiltIn(SdlConfig, {"sdl": SdlConfig()}, "sdl"),
    BuiltIn(TextAlignedConfig, {"text-aligned": TextAlignedConfig()}, "text_aligned"),
    BuiltIn(RamPlusConfig, {"ram-plus": RamPlusConfig()}, "ram_plus"),
)
