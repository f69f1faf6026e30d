"""The feature cache of a frozen backbone: each image's map is computed once, stored, and read back in every epoch."""

from labelwise.features.cache import FeatureCache, default_folder

__all__ = ["FeatureCache", "default_folder"]
