"""Decoded images as PyTorch datasets and loaders, with augmentation."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.loading.augment import batch_mix, eval_transform, train_transform
    from labelwise.loading.config import AugmentationConfig
    from labelwise.loading.dataset import Batch, ImageDataset, ImageLoader, Sample

__all__ = [
    "AugmentationConfig",
    "Batch",
    "ImageDataset",
    "ImageLoader",
    "Sample",
    "batch_mix",
    "eval_transform",
    "train_transform",
]

__getattr__ = lazy_imports(__name__, __file__)
