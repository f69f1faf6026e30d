"""What a stored map depends on besides the picture, as one short name."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from typing import Any

import torch
from torch import nn

from labelwise.config import Config
from labelwise.preprocessing import Preprocessing

# To be raised whenever the same picture would give another map or another file: how labelwise decodes and resizes
# pictures, the precision and the layout of the store.
FORMAT = 1


def describe(backbone: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """What a person would want to know of a store: kept beside the maps, and part of the fingerprint."""
    config = getattr(backbone, "config", None)
    return {
        "format": FORMAT,
        "backbone": config.model_dump(mode="json") if isinstance(config, Config) else type(backbone).__qualname__,
        "preprocessing": preprocessing.model_dump(mode="json"),
    }


def fingerprint(backbone: nn.Module, preprocessing: Preprocessing) -> str:
    """The same for the same backbone with the same weights and preprocessing, in every process; else another.

    >>> layer = nn.Conv2d(3, 4, 1)
    >>> before = fingerprint(layer, Preprocessing())
    >>> _ = layer.weight.data[0].mul_(1.001)
    >>> len(before), before == fingerprint(layer, Preprocessing())
    (32, False)
    """
    digest = hashlib.sha256(json.dumps(describe(backbone, preprocessing), sort_keys=True).encode())
    digest.update(repr(backbone).encode())  # the modules with their options
    # Not the state dict: it leaves out the buffers that are not saved.
    for name, tensor in chain(backbone.named_parameters(), backbone.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
