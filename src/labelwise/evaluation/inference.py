"""A model's logits for every image of a table, with test-time augmentation, from images or from cached features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelwise.core.arrays import Floats
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import progress_of
from labelwise.data.decode import TableImages
from labelwise.data.images import BadImage, OnBadImage
from labelwise.data.stream_table import AnyTable
from labelwise.engines.choose import WORTH_MEASURING, open_engine, run_full_batch
from labelwise.model.model import LabelModel
from labelwise.model.network import Network, evaluating, given
from labelwise.runtime.sessions import Engine, EngineName
from labelwise.runtime.tagger import Model

if TYPE_CHECKING:
    from labelwise.features import FeatureCache


# Images for which it pays to convert the head as well; the backbone was probably converted for the training.
WORTH_CONVERTING = 10_000


@dataclass(frozen=True)
class TableLogits:
    """Logits of the images of a table that could be decoded."""

    logits: NDArray[np.float32]  # [m, N]
    rows: NDArray[np.int64]  # [m] rows of the table, rising: all but the bad images
    bad_images: tuple[BadImage, ...]


class InferenceOptions(TypedDict, total=False):
    """The keyword arguments of `predict_logits`, for functions that pass them on."""

    batch_size: int
    workers: int
    on_bad_image: OnBadImage
    flip: bool
    scales: Sequence[float]
    progress: bool
    features: FeatureCache | None
    engine: Engine | None


def predict_logits(
    model: Model,
    table: AnyTable,
    *,
    batch_size: int = 32,
    workers: int = 0,
    on_bad_image: OnBadImage = "error",
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    progress: bool = True,
    features: FeatureCache | None = None,
    engine: Engine | None = None,
) -> TableLogits:
    """Logits of the table's images, in its order.

    The logits of all views are averaged, not the probabilities: a temperature then still changes no ranking, and a
    confident view (sigmoid 1 - 1e-9) is not rounded away.

    Args:
        model: A model in memory, optimised or exported.
        table: The images.
        batch_size: Images per batch.
        workers: Threads that decode images; 0: one per core.
        on_bad_image: `skip` leaves out images that cannot be decoded.
        flip: Also use the mirrored image.
        scales: Input sizes, as multiples of the model's own.
        progress: Whether to show progress.
        features: Cached features of the images; only the head runs, in torch.
        engine: What runs the model; by default it runs by itself.
    """
    if features is not None and list(scales) != [1]:
        raise LabelwiseError("cached features are of one input size; leave out the scales, or do not use the cache")
    sizes = input_sizes(model, scales)
    total = torch.zeros(len(table), len(model.config.labels))  # [M, N]
    seen = torch.zeros(len(table), dtype=torch.bool)
    bad_images: Sequence[BadImage] = ()
    for size in sizes:
        if features is not None:
            batches, bad_images = _from_features(_in_memory(model), features, batch_size, flip), features.bad_images
        else:
            preprocessing = model.config.preprocessing.model_copy(update={"size": size})
            images = TableImages(table, preprocessing, on_bad_image, workers)
            batches = _from_images(engine or model.logits, images, batch_size, flip)
        description = "Evaluating" if len(sizes) == 1 else f"Evaluating at {size} pixels"
        mode = evaluating(model) if isinstance(model, nn.Module) else nullcontext()
        with mode, torch.inference_mode(), progress_of(description, len(table), progress) as advance:
            for rows, logits in batches:
                total[rows] += logits.float()
                seen[rows] = True
                advance(len(rows))
        if features is None:
            bad_images = list(images.bad_images.values())  # the same ones at each size
    rows = seen.nonzero()[:, 0]
    if not len(rows):
        raise LabelwiseError(f"{table.source}: none of the {len(table)} images can be used")
    views = len(sizes) * (2 if flip else 1)
    return TableLogits((total[rows] / views).numpy(), rows.numpy(), tuple(bad_images))


def engine_for(
    model: Model,
    name: EngineName,
    *,
    images: int,
    batch_size: int = 32,
    scales: Sequence[float] = (1.0,),
    say: Callable[[str], None] | None = None,
) -> Engine | None:
    """The engine of this name for `predict_logits`; None where the model runs by itself.

    `images` is how many there are, about: for an engine to be worth its preparation.
    """
    if not isinstance(model, LabelModel):
        return None
    if list(scales) == [1]:
        size = model.config.preprocessing.size
        open_here = partial(open_engine, size=size, images=images, batch_size=batch_size, say=say)
        with evaluating(model):  # engines are compared with it
            if name == "auto" and images < WORTH_CONVERTING and next(model.parameters()).device.type == "cpu":
                backbone = open_here(name, model.backbone, full_batches=True)
                if backbone.family != "torch":
                    return HeadOnEngine(backbone, model, batch_size)
                if images < WORTH_MEASURING:
                    return None
                name = "torch"
            return open_here(name, model)
    if name not in ("auto", "torch"):
        raise LabelwiseError(
            f"engine {name} runs a model at one input size; use torch for other scales", options={"engine": "torch"}
        )
    return None


class HeadOnEngine:
    """A model with its backbone in an engine, as features are computed for training, and its head in PyTorch."""

    def __init__(self, backbone: Engine, model: LabelModel, batch_size: int) -> None:
        self.family, self._backbone, self._model, self._batch_size = backbone.family, backbone, model, batch_size

    @torch.inference_mode()
    def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
        maps = torch.from_numpy(run_full_batch(self._backbone, images, self._batch_size))
        told = given(None if known is None else torch.from_numpy(known))
        logits: Floats = self._model.head(maps, **told).numpy()
        return logits


def _in_memory(model: Model) -> Network:
    if not isinstance(model, Network):
        raise LabelwiseError("an exported model has one input size and no separate backbone; use no cache or scales")
    return model


def input_sizes(model: Model, scales: Sequence[float]) -> list[int]:
    """The model's own size times each scale, rounded to a multiple of the backbone's stride (1.0 stays as it is)."""
    native = model.config.preprocessing.size
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise LabelwiseError(
            f"scales {', '.join(map(str, scales)) or '(none)'}: give positive numbers, as in 0.8,1.0,1.2"
        )
    if list(scales) == [1]:
        return [native]
    network = _in_memory(model)
    stride = round(native / _map_side(network, native))
    sizes = [native if scale == 1 else max(1, round(native * scale / stride)) * stride for scale in scales]
    for place, size in enumerate(sizes):
        if size in sizes[:place]:
            first = scales[sizes.index(size)]
            raise LabelwiseError(
                f"scales {first} and {scales[place]} both give {size} pixels (multiples of {stride}); leave one out"
            )
        _map_side(network, size)
    return sizes


def _map_side(model: Network, size: int) -> int:
    """The side of the feature map for images of `size` pixels; an error if the backbone cannot take them."""
    device = next(model.parameters()).device
    try:
        with evaluating(model), torch.inference_mode():
            return int(model.backbone(torch.zeros(1, 3, size, size, device=device)).shape[-1])
    except (AssertionError, RuntimeError, ValueError):  # timm's families each refuse in their own way
        raise LabelwiseError(
            f"backbone {model.config.backbone.name!r} cannot take images of {size} pixels, "
            f"only {model.config.preprocessing.size}; leave out the scales"
        ) from None


def _from_images(
    engine: Callable[[Floats], Floats], images: TableImages, batch_size: int, flip: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows [B] and the sum of the views' logits [B, N]."""
    for rows, views in images.batches(batch_size):
        logits = engine(views)
        if flip:
            logits = logits + engine(np.ascontiguousarray(views[..., ::-1]))
        yield torch.tensor(rows), torch.from_numpy(logits)


def _from_features(
    model: Network, features: FeatureCache, batch_size: int, flip: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same from the backbone's maps: only the head runs."""
    device = next(model.parameters()).device
    for rows in torch.as_tensor(features.rows).split(batch_size):
        views = [model.head(features.batch(rows, flip=mirrored).to(device)) for mirrored in (False, True)[: 1 + flip]]
        yield rows, torch.stack(views).sum(dim=0).cpu()
