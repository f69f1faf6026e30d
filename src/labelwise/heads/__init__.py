"""Classification heads as plain PyTorch modules: usable alone, on any feature map."""

from labelwise.heads.config import HeadConfig
from labelwise.heads.details import HeadDetails
from labelwise.heads.expert_banks import register_expert
from labelwise.heads.public_weights import load_ml_decoder
from labelwise.heads.registry import Head, build, create, list_heads, preset, with_options

__all__ = [
    "Head",
    "HeadConfig",
    "HeadDetails",
    "build",
    "create",
    "list_heads",
    "load_ml_decoder",
    "preset",
    "register_expert",
    "with_options",
]
