"""The bundled tagger: the model that commands and functions use when none is named."""

from __future__ import annotations

from pathlib import Path


def default_model() -> Path:
    """The folder of a model for the 80 labels of MS-COCO; its README.md says how it was made and how good it is.

    It is an exported model, which runs without PyTorch, and has the model that it was made from in `pytorch/`.
    """
    return Path(__file__).with_name("coco80")
