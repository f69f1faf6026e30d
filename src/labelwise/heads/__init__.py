"""Classification heads as plain PyTorch modules: usable alone, on any feature map.

`create("hsq", in_features=2048, labels=80)` makes a head; `list_heads()` lists the names. A head of your own is one
file: see `register_head`.
"""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.heads.add_gcn import AddGcnHead
    from labelwise.heads.attention_per_cluster import AttentionPerClusterHead
    from labelwise.heads.attention_per_label import AttentionPerLabelHead
    from labelwise.heads.base import Head, HeadDetails, LossTerms, as_map, as_tokens, checked_words, on_grid
    from labelwise.heads.biam import BiamHead
    from labelwise.heads.c_tran import CTranHead
    from labelwise.heads.cma import CmaHead
    from labelwise.heads.config import HeadConfig
    from labelwise.heads.conse import ConseHead
    from labelwise.heads.csra import CsraHead
    from labelwise.heads.experts import GateMeter, register_expert
    from labelwise.heads.fast0tag import Fast0TagHead
    from labelwise.heads.folding import optimize
    from labelwise.heads.gap import GapHead
    from labelwise.heads.graphs import checked_cooccurrence
    from labelwise.heads.kssnet import KssnetHead
    from labelwise.heads.lesa import LesaHead
    from labelwise.heads.mcar import McarHead
    from labelwise.heads.ml_gcn import MlGcnHead
    from labelwise.heads.query_head import QueryHead
    from labelwise.heads.ram_plus import RamPlusHead
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
    from labelwise.heads.srn import SrnHead
    from labelwise.heads.ssgrl import SsgrlHead
    from labelwise.heads.sst import SstHead
    from labelwise.heads.tdrg import TdrgHead
    from labelwise.heads.text_aligned import TextAlignedHead
    from labelwise.heads.weights import load_csra, load_gap, load_ml_decoder, load_q2l, load_ram

__all__ = [
    "AddGcnHead",
    "AnyHeadConfig",
    "AttentionPerClusterHead",
    "AttentionPerLabelHead",
    "BiamHead",
    "CTranHead",
    "CmaHead",
    "ConseHead",
    "CsraHead",
    "Fast0TagHead",
    "GapHead",
    "GateMeter",
    "Head",
    "HeadConfig",
    "HeadDetails",
    "KssnetHead",
    "LesaHead",
    "LossTerms",
    "McarHead",
    "MlGcnHead",
    "QueryHead",
    "RamPlusHead",
    "SdlHead",
    "SrnHead",
    "SsgrlHead",
    "SstHead",
    "TdrgHead",
    "TextAlignedHead",
    "as_map",
    "as_tokens",
    "build",
    "checked_cooccurrence",
    "checked_words",
    "create",
    "list_heads",
    "load_csra",
    "load_gap",
    "load_ml_decoder",
    "load_q2l",
    "load_ram",
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
