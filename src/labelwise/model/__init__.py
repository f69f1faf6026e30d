"""A model: backbone, head, label names and preprocessing; its folder on disk and its card."""

from labelwise.model.checkpoints import load_checkpoint
from labelwise.model.model import LabelModel, create_model, load_model

__all__ = ["LabelModel", "create_model", "load_checkpoint", "load_model"]
