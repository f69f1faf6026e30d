"""A model: backbone, head, label names and preprocessing; its folder on disk and its card."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.model.checkpoints import load_checkpoint
    from labelwise.model.model import LabelModel, create_model, load_model

__all__ = ["LabelModel", "create_model", "load_checkpoint", "load_model"]

__getattr__ = lazy_imports(__name__, __file__)
