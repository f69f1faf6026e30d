"""Backbones: any timm model by name, with weights from the hub, a file or an installed package."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.backbones.config import BackboneConfig
    from labelwise.backbones.timm_backbone import Backbone, list_backbones
    from labelwise.backbones.weights import read_state_dict

__all__ = ["Backbone", "BackboneConfig", "list_backbones", "read_state_dict"]

__getattr__ = lazy_imports(__name__, __file__)
