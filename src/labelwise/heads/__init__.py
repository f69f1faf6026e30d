"""Classification heads as plain PyTorch modules: usable alone, on any feature map."""

from labelwise.heads.base import HeadDetails
from labelwise.heads.config import HeadConfig
from labelwise.heads.expert_banks import register_expert
from labelwise.heads.optimize import optimize
from labelwise.heads.queries import with_random_targets
from labelwise.heads.query_head import QueryHead
from labelwise.heads.registry import Head, build, create, list_heads, preset, with_options
from labelwise.heads.relabel import WordHead, regroup, relabelled
from labelwise.heads.weights import load_ml_decoder
from labelwise.heads.words import require_word_head, uses_words

__all__ = [
    "Head",
    "HeadConfig",
    "HeadDetails",
    "QueryHead",
    "WordHead",
    "build",
    "create",
    "list_heads",
    "load_ml_decoder",
    "optimize",
    "preset",
    "register_expert",
    "regroup",
    "relabelled",
    "require_word_head",
    "uses_words",
    "with_options",
    "with_random_targets",
]
