"""labelwise: multi-label image classification. Given a photo, every label that applies, how sure, and where it looked.

The public names are imported on first use, so that `import labelwise` (and `labelwise --help`) does not load PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.engines.load import load
    from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.runtime.tagger import Tagger

__all__ = [
    "LabelModel",
    "LabelwiseError",
    "Tagger",
    "create_model",
    "data",
    "heads",
    "load",
    "load_model",
    "losses",
    "metrics",
]

_MODULES = {"data", "heads", "losses", "metrics"}
_HOME = {
    "LabelModel": "labelwise.model",
    "create_model": "labelwise.model",
    "load_model": "labelwise.model",
    "Tagger": "labelwise.runtime.tagger",
    "load": "labelwise.engines.load",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"labelwise.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'labelwise' has no attribute {name!r}")
