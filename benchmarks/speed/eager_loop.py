"""The peer of `python -m benchmarks.speed throughput`: an eager PyTorch loop over Pillow images, with batches,
as in the inference script of ML-Decoder's authors."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision import transforms

from labelwise.data.preprocessing import Preprocessing
from labelwise.model.model import LabelModel


class EagerLoop:
    """`scores` of images [M, N]; `seconds` says what each stage has taken."""

    def __init__(self, model: LabelModel, batch_size: int) -> None:
        self.model, self.batch_size = model, batch_size
        self.transform = _transform(model.config.preprocessing)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @torch.no_grad()
    def scores(self, paths: Sequence[str]) -> NDArray[np.float32]:
        rows = []
        for start in range(0, len(paths), self.batch_size):
            batch = torch.stack([self._input(path) for path in paths[start : start + self.batch_size]])
            began = time.perf_counter()
            maps = self.model.backbone(batch)
            self._note("backbone", began)
            began = time.perf_counter()
            rows.append(self.model.scores(self.model.head(maps)).numpy())
            self._note("head", began)
        return np.concatenate(rows)

    @torch.no_grad()
    def maps(self, paths: Sequence[str]) -> None:
        """The backbone's maps alone, which is what a feature cache holds."""
        for start in range(0, len(paths), self.batch_size):
            self.model.backbone(torch.stack([self._input(path) for path in paths[start : start + self.batch_size]]))

    def _input(self, path: str) -> Tensor:
        began = time.perf_counter()
        image = Image.open(path).convert("RGB")
        self._note("decode", began)
        began = time.perf_counter()
        tensor: Tensor = self.transform(image)
        self._note("preprocess", began)
        return tensor

    def _note(self, stage: str, began: float) -> None:
        self.seconds[stage] += time.perf_counter() - began


def _transform(preprocessing: Preprocessing) -> transforms.Compose:
    size, mode = preprocessing.size, transforms.InterpolationMode(preprocessing.interpolation)
    squash = preprocessing.resize == "squash"
    steps = [transforms.Resize((size, size) if squash else size, mode)]
    steps += [] if squash else [transforms.CenterCrop(size)]
    return transforms.Compose(
        [*steps, transforms.ToTensor(), transforms.Normalize(preprocessing.mean, preprocessing.std)]
    )
