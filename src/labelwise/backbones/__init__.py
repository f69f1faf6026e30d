"""Backbones: any timm model by name, with weights from the hub, a file or an installed package."""

from labelwise.backbones import tresnet as _tresnet  # noqa: F401 (registers its models in timm)
from labelwise.backbones.timm_backbone import Backbone, BackboneConfig, list_backbones
from labelwise.backbones.weights import read_state_dict

__all__ = ["Backbone", "BackboneConfig", "list_backbones", "read_state_dict"]
