"""The model and the images that a benchmark uses when the user names none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.model.model import LabelModel

BACKBONE, SIZE, LABELS = "tf_efficientnet_lite2", 224, 20


def bench_model(source: str | None) -> LabelModel:
    """A trained model, or the standard one: a pretrained backbone and an HSQ head as for VOC's 20 labels, untrained."""
    import torch

    from labelwise.model.model import create_model, load_model

    if source is not None:
        return load_model(source)
    torch.manual_seed(0)
    return create_model(BACKBONE, "hsq", LABELS, weights="auto", size=SIZE, dim=256).eval()


def model_name(source: str | None) -> str:
    """What a results file calls the model: where its folder lies is nobody's business.

    >>> model_name("/home/me/runs/first"), model_name(None)
    ('first', 'default')
    """
    return "default" if source is None else Path(source).name


def bench_photos(folder: Path | None, count: int, drawn_in: Path) -> list[str]:
    """The first JPEGs of a folder, or synthetic images of a size that photos have on the web."""
    from labelwise.data.decode import find_images
    from labelwise.data.sample import make_sample

    if folder is None:
        return list(make_sample(drawn_in, images=count, size=400).images)
    found = [str(path) for path in find_images(folder) if str(path).lower().endswith((".jpg", ".jpeg"))]
    if not found:
        raise LabelwiseError(f"{str(folder)!r} holds no JPEGs; name another folder")
    return found[:count]
