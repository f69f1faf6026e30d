"""Classification heads as plain PyTorch modules: usable alone, on any feature map.

`create("hsq", in_features=2048, labels=80)` makes a head; `list_heads()` lists the names. A head of your own is one
file: see `register_head`.
"""

from labelwise.heads.base import Head, HeadConfig, HeadDetails, as_tokens, checked_words

# Importing a head's file registers it; this is the order in which they are listed.
# isort: off
from labelwise.heads.gap import GapHead
from labelwise.heads.csra import CsraHead
from labelwise.heads.query_head import QueryHead
from labelwise.heads.conse import ConseHead
from labelwise.heads.fast0tag import Fast0TagHead

# isort: on
from labelwise.heads.experts import GateMeter, register_expert
from labelwise.heads.optimize import optimize
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
from labelwise.heads.weights import load_csra, load_gap, load_ml_decoder, load_q2l

__all__ = [
    "AnyHeadConfig",
    "ConseHead",
    "CsraHead",
    "Fast0TagHead",
    "GapHead",
    "GateMeter",
    "Head",
    "HeadConfig",
    "HeadDetails",
    "QueryHead",
    "as_tokens",
    "build",
    "checked_words",
    "create",
    "list_heads",
    "load_csra",
    "load_gap",
    "load_ml_decoder",
    "load_q2l",
    "optimize",
    "parse_config",
    "preset",
    "register_expert",
    "register_head",
    "unregister_head",
    "with_options",
]
