"""Names for the heads of the papers: a preset is a config, and any part of it can be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from torch import Tensor

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.heads.config import (
    ConseConfig,
    CsraConfig,
    DecoderConfig,
    ExpertsConfig,
    Fast0TagConfig,
    GapConfig,
    HeadConfig,
    QueriesConfig,
    QueryHeadConfig,
    TokensConfig,
)
from labelwise.heads.conse import ConseHead
from labelwise.heads.fast0tag import Fast0TagHead
from labelwise.heads.pooling import CsraHead, GapHead
from labelwise.heads.query_head import QueryHead

Head = QueryHead | GapHead | CsraHead | ConseHead | Fast0TagHead

_HSQ = QueryHeadConfig(
    tokens=TokensConfig(encoder_layers=1),
    decoder=DecoderConfig(decoder_layers=2, feedforward_ratio=2),
    experts=ExpertsConfig(experts="hybrid"),
)

PRESETS: dict[str, HeadConfig] = {
    "gap": GapConfig(),
    "csra": CsraConfig(),
    "transformer-decoder": QueryHeadConfig(
        tokens=TokensConfig(token_relu=True),
        decoder=DecoderConfig(first_block="self-attention", feedforward=2048),
    ),
    "q2l": QueryHeadConfig(
        tokens=TokensConfig(positions="keys", encoder_layers=1),
        decoder=DecoderConfig(decoder_layers=2, query_role="position", final_norm=True, attention_heads=4),
    ),
    "ml-decoder": QueryHeadConfig(
        tokens=TokensConfig(dim=768, token_relu=True),
        queries=QueriesConfig(queries="random", groups=100),
        decoder=DecoderConfig(first_block="identity", feedforward=2048),
    ),
    "hsq": _HSQ,
    "hsq-linear": _HSQ.model_copy(update={"experts": ExpertsConfig(experts="linear")}),
    "conse": ConseConfig(),
    "fast0tag": Fast0TagConfig(),
}


def list_heads(pattern: str = "*") -> list[str]:
    """Names of the presets that match a wildcard pattern.

    >>> list_heads("hsq*")
    ['hsq', 'hsq-linear']
    """
    return [name for name in PRESETS if fnmatch(name, pattern)]


def preset(name: str) -> HeadConfig:
    if name not in PRESETS:
        raise unknown_name("head", name, PRESETS)
    return PRESETS[name]


def option_parts(config: HeadConfig) -> dict[str, str | None]:
    """Every option of a head by its plain name, and the part it belongs to (None: the head has no parts)."""
    if not isinstance(config, QueryHeadConfig):
        return {name: None for name in type(config).model_fields if name != "kind"}
    parts = [name for name in QueryHeadConfig.model_fields if name != "kind"]
    return {option: part for part in parts for option in type(getattr(config, part)).model_fields}


def with_options(config: HeadConfig, options: Mapping[str, Any], where: str) -> HeadConfig:
    """`config` with some options changed, checked; `where` names the head in an error."""
    parts = option_parts(config)
    values = config.model_dump()
    for name, value in options.items():
        if name not in parts:
            raise LabelwiseError(f"{where}: {unknown_name('option', name, parts)}")
        part = parts[name]
        (values if part is None else values[part])[name] = value
    return parse_config(values, where)


def parse_config(values: Mapping[str, Any], where: str) -> HeadConfig:
    """A head's config from plain values, as saved in a model folder."""
    kinds: dict[str, type[HeadConfig]] = {
        "query": QueryHeadConfig,
        "gap": GapConfig,
        "csra": CsraConfig,
        "conse": ConseConfig,
        "fast0tag": Fast0TagConfig,
    }
    kind = str(values.get("kind"))
    if kind not in kinds:
        raise LabelwiseError(f"{where}: {unknown_name('kind', kind, kinds)}")
    return kinds[kind].parse(values, where)


def build(
    config: HeadConfig,
    in_features: int,
    labels: int,
    word_vectors: Tensor | None = None,
    label_slot: Tensor | None = None,
) -> Head:
    if labels < 1:
        raise LabelwiseError(f"a head needs at least one label, not {labels}")
    if label_slot is not None and not isinstance(config, QueryHeadConfig):
        raise LabelwiseError("label_slot deals labels to groups, but this head has no queries; use ml-decoder or hsq")
    if isinstance(config, GapConfig):
        return GapHead(config, in_features, labels)
    if isinstance(config, CsraConfig):
        return CsraHead(config, in_features, labels)
    if isinstance(config, ConseConfig):
        return ConseHead(config, in_features, labels, word_vectors)
    if isinstance(config, Fast0TagConfig):
        return Fast0TagHead(config, in_features, labels, word_vectors)
    return QueryHead(config, in_features, labels, word_vectors, label_slot)


def create(
    name: str,
    *,
    in_features: int,
    labels: int | Sequence[str],
    word_vectors: Tensor | None = None,
    label_slot: Tensor | None = None,
    **options: Any,
) -> Head:
    """A head by name: a plain `nn.Module` from [B, C, H, W] or [B, T, C] to logits [B, N].

    `labels` is a number or a list of names; `options` change any part of the preset. Word queries take `word_vectors`
    [N, length]. Labels are dealt to groups at random, or as `label_slot` [N] says: slot s belongs to group s // g.

    >>> head = create("ml-decoder", in_features=64, labels=300, dim=32, groups=20)
    >>> head.groups, head.group_size
    (20, 15)
    """
    where = f"head {name!r}"
    if word_vectors is not None:
        options = {**options, "word_dim": word_vectors.shape[-1]}  # a recipe may name another length
    number = labels if isinstance(labels, int) else len(labels)
    return build(with_options(preset(name), options, where), in_features, number, word_vectors, label_slot)
