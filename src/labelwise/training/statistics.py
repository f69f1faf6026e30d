"""How often labels occur together in the training images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from labelwise.data.table import PRESENT, UNKNOWN, LabelTable

_DIMENSIONS = 64  # of the vectors that stand for co-occurrence
_ITERATIONS = 8
_IMAGES_AT_ONCE = 65_536
_ENTRIES_AT_ONCE = 2**24


def cooccurrence(table: LabelTable) -> Tensor:
    """P(j | i), [N, N]: of the images with label i whose label j is known, the share that has label j.

    Unknown entries (-1) count neither way. A pair that no image tells of has 0, and so has a label without images.

    >>> names = [["cat", "sofa"], ["cat"], ["cat"], ["sofa"]]
    >>> table = LabelTable.from_lists(["a", "b", "c", "d"], names, unknown=[[], [], ["sofa"], []])
    >>> cooccurrence(table)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    together = torch.zeros(len(table.labels), len(table.labels))
    known = torch.zeros_like(together)
    for rows in np.array_split(np.arange(len(table)), 1 + len(table) * len(table.labels) // _ENTRIES_AT_ONCE):
        targets = torch.from_numpy(table.targets(rows))  # [m, N]
        present = (targets == PRESENT).float()
        together += present.T @ present
        known += present.T @ (targets != UNKNOWN).float()
    return together / known.clamp(min=1)


def cooccurrence_vectors(table: LabelTable, dimensions: int = _DIMENSIONS) -> Tensor:
    """Vectors [N, d] whose products approximate how often two labels occur together, n_ij / sqrt(n_i n_j).

    They are the leading eigenvectors of that [N, N] matrix, found by subspace iteration on the sparse table; the matrix
    itself is never built.

    >>> names = [["cat", "sofa"], ["cat", "sofa"], ["car", "road"], ["car"]]
    >>> vectors = cooccurrence_vectors(LabelTable.from_lists(["a", "b", "c", "d"], names))
    >>> [round(abs(product), 4) for product in (vectors @ vectors[0]).tolist()]  # of car with car, cat, road, sofa
    [1.0, 0.0, 0.7071, 0.0]
    """
    present = torch.from_numpy(table.values == PRESENT)
    columns = torch.from_numpy(table.columns).long()[present]
    images = torch.from_numpy(np.repeat(np.arange(len(table)), np.diff(table.indptr)))[present]  # rising
    scale = torch.from_numpy(table.positives_per_label()).clamp(min=1).float().rsqrt()[:, None]  # [N, 1]

    def together(vectors: Tensor) -> Tensor:  # [N, d] -> the matrix times [N, d]
        scaled, result = vectors * scale, torch.zeros_like(vectors)
        for start in range(0, len(table), _IMAGES_AT_ONCE):
            first, last = torch.searchsorted(images, torch.tensor([start, start + _IMAGES_AT_ONCE])).tolist()
            labels, rows = columns[first:last], images[first:last] - start
            by_image = torch.zeros(_IMAGES_AT_ONCE, vectors.shape[1]).index_add_(0, rows, scaled[labels])
            result.index_add_(0, labels, by_image[rows])
        return result * scale

    start = torch.randn(len(table.labels), dimensions, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(start).Q  # [N, d]
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(together(basis)).Q
    strengths, turned = torch.linalg.eigh(basis.T @ together(basis))  # the matrix within the basis
    vectors: Tensor = basis @ turned * strengths.clamp(min=0).sqrt()
    return vectors
