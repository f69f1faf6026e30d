"""Use a model: pictures in, labels with scores out, and where it looked on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, get_args

import numpy as np

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.progress import track
from labelwise.data.decode import FoundImage, ImageSources, decode, find_images, thread_count
from labelwise.data.images import BadImageError, OnBadImage
from labelwise.data.preprocessing import InputTransform
from labelwise.runtime.exported import ExportedModel
from labelwise.runtime.prediction import Doubles, Prediction, QueryMaps, TaggerConfig, check_threshold, probabilities
from labelwise.runtime.sessions import Engine, Family, Floats


class Model(Protocol):
    """What a `Tagger` needs: a `LabelModel`, its optimised copy, or an `ExportedModel`."""

    @property
    def config(self) -> TaggerConfig: ...

    @property
    def family(self) -> Family:
        """What runs it."""

    def logits(self, images: Floats) -> Floats:
        """Logits [B, N] of inputs [B, 3, H, W]."""

    def maps(self, images: Floats) -> QueryMaps | None:
        """Where each query looked, [B, K, H, W], and the query of each label, [N]; None if that is not to be had."""


class Tagger:
    """A model ready for pictures.

    `engine` runs it; without one it runs by itself. `threshold` replaces the thresholds that the model carries by one
    for all labels.
    """

    def __init__(self, model: Model, *, engine: Engine | None = None, threshold: float | None = None) -> None:
        self.model, self.config = model, model.config
        if threshold is not None:
            check_threshold(threshold, self.config.task)
            self.config = self.config.model_copy(update={"thresholds": (threshold,) * len(self.config.labels)})
        self.labels = self.config.labels
        self.thresholds = dict(zip(self.labels, self.config.label_thresholds, strict=True))
        self.family = engine.family if engine else model.family
        self._transform = InputTransform(self.config.preprocessing)
        self._engine = engine

    def logits(self, images: Floats) -> Floats:
        """Logits [B, N] of inputs [B, 3, size, size]."""
        return self._engine(images) if self._engine else self.model.logits(images)

    def predict(
        self, images: ImageSources, *, batch_size: int = 32, progress: bool = False, on_bad_image: OnBadImage = "error"
    ) -> list[Prediction]:
        """One prediction per picture, in their order.

        `images` is a path, a PIL picture, `Encoded` bytes with a name, a folder (searched with all folders in it, in
        alphabetical order) or any mix of these in a list. A picture that cannot be decoded raises, or with
        `on_bad_image="skip"` gives a prediction with an `error`. Millions of pictures: use `stream`, which keeps only
        what it works on in memory.
        """
        if not progress:
            return list(self.stream(images, batch_size=batch_size, on_bad_image=on_bad_image))
        sources = list(find_images(images))
        predictions = self.stream(sources, batch_size=batch_size, on_bad_image=on_bad_image)
        return list(track(predictions, "Predicting", len(sources)))

    def stream(
        self, images: ImageSources, *, batch_size: int = 32, on_bad_image: OnBadImage = "error"
    ) -> Iterator[Prediction]:
        """`predict` one after the other: while the model works on a batch, threads decode the next one."""
        if batch_size < 1:
            raise LabelwiseError(f"a batch size of {batch_size} is too small; give 1 or more")
        if on_bad_image not in get_args(OnBadImage):
            raise unknown_name("on_bad_image", on_bad_image, get_args(OnBadImage))
        waiting: deque[tuple[FoundImage, Future[Floats]]] = deque()
        pool = ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")  # Pillow releases Python's lock
        try:
            for source in find_images(images):
                waiting.append((source, pool.submit(self._input, source)))
                if len(waiting) == 2 * batch_size:
                    yield from self._batch([waiting.popleft() for _ in range(batch_size)], on_bad_image)
            while waiting:
                yield from self._batch([waiting.popleft() for _ in range(min(batch_size, len(waiting)))], on_bad_image)
        finally:
            pool.shutdown(cancel_futures=True)

    def query_maps(self, source: FoundImage) -> QueryMaps:
        """Where each query looked in a picture, [K, H, W], and the query that answers for each label, [N]."""
        found = self.model.maps(self._input(source)[None])
        if found is None:
            if isinstance(self.model, ExportedModel):
                raise LabelwiseError(
                    f"{str(self.model.folder)!r} is an exported model, which gives scores alone; load the model that "
                    "it was made from"
                )
            raise LabelwiseError(
                "this model's head has no attention to show; explain it with Grad-CAM", options={"method": "grad-cam"}
            )
        maps, label_query = found
        return maps[0], label_query

    def _input(self, source: FoundImage) -> Floats:
        """[3, size, size]; runs in a thread."""
        return self._transform(decode(source, min_side=self._transform.min_side))

    def _batch(
        self, waiting: list[tuple[FoundImage, Future[Floats]]], on_bad_image: OnBadImage
    ) -> Iterator[Prediction]:
        inputs: list[Floats] = []
        errors: list[str | None] = []
        for _, future in waiting:
            try:
                inputs.append(future.result())
                errors.append(None)
            except BadImageError as bad:
                if on_bad_image == "error":
                    raise bad.skippable() from None
                errors.append(str(bad))
        rows = iter(self.scores(np.stack(inputs)) if inputs else ())
        for (source, _), error in zip(waiting, errors, strict=True):
            yield Prediction(self.config, source, next(rows) if error is None else None, error, self.query_maps)

    def scores(self, images: Floats) -> Doubles:
        """`probabilities` [B, N] of inputs [B, 3, size, size]."""
        scores = probabilities(self.logits(images), self.config)
        if np.isnan(scores).any():
            raise LabelwiseError("the model's scores are not numbers (NaN): its weights are damaged; train it again")
        return scores
