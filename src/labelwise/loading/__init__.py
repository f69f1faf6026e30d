"""Decoded images as PyTorch datasets and loaders, with augmentation."""

from labelwise.loading.augment import AugmentationConfig, batch_mix, eval_transform, train_transform
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
