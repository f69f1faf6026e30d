"""Decoded images as PyTorch datasets and loaders, with augmentation."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.loading.augment import batch_mix, eval_transform, train_transform
    from labelwise.loading.config import AugmentationConfig
    from labelwise.loading.dataset import Batch, ImageDataset, ImageLoader, Sample
    from labelwise.loading.stream import LabelStream, StreamLoader, StreamSample, open_stream

__all__ = [
    "AugmentationConfig",
    "Batch",
    "ImageDataset",
    "ImageLoader",
    "LabelStream",
    "Sample",
    "StreamLoader",
    "StreamSample",
    "batch_mix",
    "eval_transform",
    "open_stream",
    "train_transform",
]

__getattr__ = lazy_imports(__name__, __file__)
