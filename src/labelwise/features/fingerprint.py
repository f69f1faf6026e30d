"""What a stored map depends on besides the picture, as one short name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from labelwise.config import Config
from labelwise.engines.base import Family
from labelwise.engines.network import add_network
from labelwise.preprocessing import Preprocessing

# To be raised whenever the same picture would give another map or another file: how labelwise decodes and resizes
# pictures, the precision and the layout of the store.
FORMAT = 1


def describe(backbone: nn.Module, preprocessing: Preprocessing, family: Family = "torch") -> dict[str, Any]:
    """What a person would want to know of a store: kept beside the maps, and part of the fingerprint."""
    config = getattr(backbone, "config", None)
    # Options that came later stay out while they change nothing, so that stores made before are found.
    whole = {"crop_ratio"} if preprocessing.crop_ratio == 1 else set()
    return {
        "format": FORMAT,
        "backbone": config.model_dump(mode="json", exclude={"drop_path"})
        if isinstance(config, Config)
        else type(backbone).__qualname__,
        "preprocessing": preprocessing.model_dump(mode="json", exclude=whole),
        # Engines agree to TOLERANCE, not to the last bit: maps of two of them never meet in one store.
        **({} if family == "torch" else {"engine": family}),
    }


def fingerprint(backbone: nn.Module, preprocessing: Preprocessing, family: Family = "torch") -> str:
    """The same for the same backbone with the same weights, preprocessing and engine, in every process; else another.

    >>> layer = nn.Conv2d(3, 4, 1)
    >>> before = fingerprint(layer, Preprocessing())
    >>> _ = layer.weight.data[0].mul_(1.001)
    >>> len(before), before == fingerprint(layer, Preprocessing())
    (32, False)
    """
    digest = hashlib.sha256(json.dumps(describe(backbone, preprocessing, family), sort_keys=True).encode())
    add_network(digest, backbone)
    return digest.hexdigest()[:32]
