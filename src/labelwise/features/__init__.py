"""The feature cache of a frozen backbone: each image's map is computed once, stored, and read back in every epoch."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.features.cache import FeatureCache, default_folder

__all__ = ["FeatureCache", "default_folder"]

__getattr__ = lazy_imports(__name__, __file__)
