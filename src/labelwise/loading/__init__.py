"""Decoded images as PyTorch datasets, with augmentation."""
