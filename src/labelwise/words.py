"""Word vectors of labels from a file: what word queries and word classifiers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from labelwise.errors import LabelwiseError


def read_word_vectors(path: str | Path, labels: Sequence[str]) -> Tensor:
    """Vectors [N, length] of `labels`, found by name.

    `words.safetensors` holds one tensor for each name; `words.npy` holds rows whose names are the lines of
    `words.labels.txt` beside it.
    """
    table = _read(Path(path))
    missing = [label for label in labels if label not in table]
    if missing:
        raise LabelwiseError(f"{path} has no vector for {len(missing)} labels, such as {missing[0]!r}")
    return torch.stack([table[label] for label in labels]).float()


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise LabelwiseError(f"there is no file of word vectors {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise LabelwiseError(f"cannot read the word vectors {str(path)!r}: {error}") from None
    names_file = path.with_suffix(".labels.txt")
    if not names_file.is_file():
        raise LabelwiseError(f"{str(path)!r} needs the labels of its rows in {str(names_file)!r}, one in each line")
    names = names_file.read_text(encoding="utf-8").splitlines()
    if rows.ndim != 2 or len(names) != len(rows):
        raise LabelwiseError(f"{str(path)!r} has shape {list(rows.shape)}, {str(names_file)!r} {len(names)} names")
    return dict(zip(names, torch.from_numpy(rows), strict=True))
