"""Classification heads as plain PyTorch modules: usable alone, on any feature map.

`create("hsq", in_features=2048, labels=80)` makes a head; `list_heads()` lists the names. A head of your own is one
file: see `register_head`.
"""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.heads.attention_per_cluster import AttentionPerClusterHead
    from labelwise.heads.attention_per_label import AttentionPerLabelHead
    from labelwise.heads.base import Head, HeadDetails, LossTerms, as_tokens, checked_words, on_grid
    from labelwise.heads.biam import BiamHead
    from labelwise.heads.config import HeadConfig
    from labelwise.heads.conse import ConseHead
    from labelwise.heads.csra import CsraHead
    from labelwise.heads.experts import GateMeter, register_expert
    from labelwise.heads.fast0tag import Fast0TagHead
    from labelwise.heads.folding import optimize
    from labelwise.heads.gap import GapHead
    from labelwise.heads.lesa import LesaHead
    from labelwise.heads.query_head import QueryHead
    from labelwise.heads.registry import (
        AnyHeadConfig,
        build,
        create,
        list_heads,
        parse_config,
        preset,
        register_head,
        unregister_head,
        with_options,
    )
    from labelwise.heads.sdl import SdlHead
    from labelwise.heads.weights import load_csra, load_gap, load_ml_decoder, load_q2l

__all__ = [
    "AnyHeadConfig",
    "AttentionPerClusterHead",
    "AttentionPerLabelHead",
    "BiamHead",
    "ConseHead",
    "CsraHead",
    "Fast0TagHead",
    "GapHead",
    "GateMeter",
    "Head",
    "HeadConfig",
    "HeadDetails",
    "LesaHead",
    "LossTerms",
    "QueryHead",
    "SdlHead",
    "as_tokens",
    "build",
    "checked_words",
    "create",
    "list_heads",
    "load_csra",
    "load_gap",
    "load_ml_decoder",
    "load_q2l",
    "on_grid",
    "optimize",
    "parse_config",
    "preset",
    "register_expert",
    "register_head",
    "unregister_head",
    "with_options",
]

__getattr__ = lazy_imports(__name__, __file__)
