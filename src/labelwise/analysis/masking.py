"""Whether maps are faithful: hiding where the model looked must lower the score more than hiding another region."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from labelwise.analysis.maps import Method, label_maps, map_caption
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.progress import progress_of
from labelwise.data.decode import TableImages
from labelwise.data.labels import match_labels
from labelwise.data.table import PRESENT, LabelTable
from labelwise.model.model import LabelModel
from labelwise.model.network import evaluating

_RESAMPLES = 2000  # for the interval


@dataclass(frozen=True)
class MaskingCheck:
    """Mean drops of the score of a label that is present, as fractions.

    Attributes:
        maps: What was checked.
        images: How many images were used.
        area: Share of the image that was hidden.
        score: Mean score before.
        drop_attended: Drop when the attended region is hidden.
        drop_random: Drop when a region of the same size and shape somewhere else is hidden.
        difference: Of the two drops.
        low: Lower end of the 95% interval of the difference, from resampled images.
        high: Upper end.
        larger: Share of the images in which hiding the attended region costs more.
    """

    maps: str
    images: int
    area: float
    score: float
    drop_attended: float
    drop_random: float
    difference: float
    low: float
    high: float
    larger: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        attended, elsewhere, difference, low, high, score = (
            round(100 * value, 1) + 0.0  # not -0.0
            for value in (self.drop_attended, self.drop_random, self.difference, self.low, self.high, self.score)
        )
        return (
            f"{self.maps}: hiding {self.area:.0%} of the image where the model looked lowers the score by "
            f"{attended:.1f} points, hiding as much elsewhere by {elsewhere:.1f}; difference {difference:.1f} "
            f"({low:.1f} to {high:.1f}, 95%), larger in {self.larger:.0%} of {counted(self.images, 'image')} "
            f"(mean score {score:.1f})"
        )


def masking_check(
    model: LabelModel,
    table: LabelTable,
    images: int = 200,
    *,
    method: Method | None = None,
    layer: int | None = None,
    head: int | None = None,
    area: float = 0.25,
    draws: int = 4,
    seed: int = 0,
    batch_size: int = 16,
    workers: int = 0,
    progress: bool = True,
) -> MaskingCheck:
    """Check a model's maps on images with a label that is present.

    Hidden pixels get the mean colour. The random region is the attended one, shifted by a random distance with
    wrap-around: size and shape are the same, only the position is not.

    Args:
        model: The model.
        table: The images with their labels.
        images: How many images to use.
        method: As for `label_maps`.
        layer: As for `label_maps`.
        head: As for `label_maps`.
        area: Share of the image to hide.
        draws: Random regions per image.
        seed: Seed of everything random.
        batch_size: Images per batch.
        workers: Threads that decode images; 0: one per core.
        progress: Whether to show progress.
    """
    rng = np.random.default_rng(seed)
    rows, labels = _choose(match_labels(table, model.labels, ignore_extra=True), images, rng)
    if not len(rows):
        raise LabelwiseError(f"{table.source}: no image has a label that the model knows, so nothing can be checked")
    dataset = TableImages(table.select(rows), model.config.preprocessing, "skip", workers)
    device = next(model.parameters()).device
    scores, attended, random = [], [], []
    with evaluating(model), progress_of("Checking", len(rows), progress) as advance:
        for numbers, images_read in dataset.batches(batch_size):
            inputs = torch.from_numpy(images_read).to(device, memory_format=torch.channels_last)  # [B, 3, size, size]
            chosen = torch.from_numpy(labels[numbers]).to(device)[:, None]  # [B, 1]
            maps = label_maps(model, inputs, chosen, method=method, layer=layer, head=head)[:, 0]
            hidden = attended_pixels(maps, inputs.shape[-1], area)  # [B, size, size]
            before = _score(model, inputs, chosen)
            scores.append(before)
            attended.append(before - _score(model, _hide(inputs, hidden), chosen))
            moved = [before - _score(model, _hide(inputs, move(hidden, rng)), chosen) for _ in range(draws)]
            random.append(torch.stack(moved).mean(dim=0))
            advance(len(inputs))
    if not scores:
        raise LabelwiseError(
            f"{table.source}: none of {counted(len(rows), 'image')} can be decoded, e.g. {dataset.table.images[0]!r}"
        )
    drops = np.stack([torch.cat(part).double().cpu().numpy() for part in (scores, attended, random)])  # [3, m]
    return _summary(drops, map_caption(model, method, layer, head), area, rng)


def attended_pixels(maps: Tensor, size: int, area: float) -> Tensor:
    """Mask [B, size, size] of the share `area` of the pixels where maps [B, h, w] are highest.

    >>> attended_pixels(torch.tensor([[[0.1, 0.7], [0.1, 0.1]]]), 4, 0.25).int().tolist()
    [[[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]]
    """
    smooth = F.interpolate(maps[:, None].float(), size=(size, size), mode="bilinear").flatten(1)  # [B, size * size]
    highest = smooth.topk(max(1, round(area * size * size)), dim=1).indices
    hidden = torch.zeros_like(smooth, dtype=torch.bool).scatter_(1, highest, True)
    return hidden.view(-1, size, size)


def move(hidden: Tensor, rng: np.random.Generator) -> Tensor:
    """Each mask [B, size, size] shifted by a random distance, with wrap-around."""
    size = hidden.shape[-1]
    moved = []
    for region in hidden:
        down, right = divmod(int(rng.integers(1, size * size)), size)  # never by nothing
        moved.append(region.roll((down, right), dims=(0, 1)))
    return torch.stack(moved)


def _choose(table: LabelTable, images: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random rows with a label, in order, and one label of each."""
    listed = np.flatnonzero(table.values == PRESENT)  # entries, by rows
    row_of = np.repeat(np.arange(len(table)), np.diff(table.indptr))[listed]
    able = np.unique(row_of)
    rows = np.sort(rng.permutation(able)[:images])
    return rows, np.array([rng.choice(table.columns[listed[row_of == row]]) for row in rows], np.int64)


def _hide(images: Tensor, hidden: Tensor) -> Tensor:
    """0 is the mean colour: images are normalised."""
    return images.masked_fill(hidden[:, None], 0.0)


@torch.inference_mode()
def _score(model: LabelModel, images: Tensor, labels: Tensor) -> Tensor:
    return model.scores(model(images).float()).gather(1, labels)[:, 0]  # [B]


def _summary(drops: NDArray[np.float64], maps: str, area: float, rng: np.random.Generator) -> MaskingCheck:
    scores, attended, random = drops
    gaps = attended - random  # paired: both of the same image
    means = gaps[rng.integers(0, len(gaps), (_RESAMPLES, len(gaps)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return MaskingCheck(
        maps=maps,
        images=len(gaps),
        area=area,
        score=float(scores.mean()),
        drop_attended=float(attended.mean()),
        drop_random=float(random.mean()),
        difference=float(gaps.mean()),
        low=float(low),
        high=float(high),
        larger=float((gaps > 0).mean()),
    )
