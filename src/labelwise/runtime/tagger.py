"""Use a model: images in, labels with scores out, and where it looked on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Protocol, get_args

import numpy as np

from labelwise.core.arrays import Doubles, Floats
from labelwise.core.errors import LabelwiseError, counted, shortened, unknown_name
from labelwise.core.progress import ShowProgress, track
from labelwise.data.decode import FoundImage, ImageSources, decode, decode_many, find_images
from labelwise.data.images import BadImageError, OnBadImage
from labelwise.data.preprocessing import InputTransform
from labelwise.runtime.exported import ExportedModel
from labelwise.runtime.prediction import (
    Evidence,
    Prediction,
    Predictions,
    QueryMaps,
    TaggerConfig,
    check_threshold,
    probabilities,
)
from labelwise.runtime.sessions import Engine, Family


class Model(Protocol):
    """What a `Tagger` needs: a `LabelModel`, its optimised copy, or an `ExportedModel`."""

    @property
    def config(self) -> TaggerConfig: ...

    @property
    def family(self) -> Family:
        """What runs it."""

    @property
    def takes_known(self) -> bool:
        """Whether it can be told of labels that are known, [B, N]: 1 present, 0 absent, -1 not known."""

    def logits(self, images: Floats, known: Floats | None = None) -> Floats:
        """Logits [B, N] of inputs [B, 3, H, W]."""

    def evidence(self, images: Floats, known: Floats | None = None) -> Evidence:
        """The logits with what led to them, as far as the model can tell."""


class Tagger:
    """A model ready for images.

    Args:
        model: A `LabelModel`, an `OptimizedModel` or an `ExportedModel`.
        engine: What runs it; by default it runs by itself.
        threshold: One threshold for all labels, instead of the model's own.

    Attributes:
        labels: The labels, in the model's order.
        thresholds: The score from which each label applies.
        family: What runs the model: torch, onnxruntime or openvino.

    Example:
        >>> tagger = Tagger(model)  # doctest: +SKIP
        >>> tagger.predict(["a.jpg", "https://example.org/b.jpg"])  # doctest: +SKIP
        <Predictions: 2 images>
          a.jpg: dog 0.98, person 0.91
          https://example.org/b.jpg: no label
    """

    def __init__(self, model: Model, *, engine: Engine | None = None, threshold: float | None = None) -> None:
        self.model, self.config = model, model.config
        if threshold is not None:
            check_threshold(threshold, self.config.task)
            self.config = self.config.model_copy(update={"thresholds": (threshold,) * len(self.config.labels)})
        self.labels = self.config.labels
        self.thresholds = dict(zip(self.labels, self.config.label_thresholds, strict=True))
        self.family = engine.family if engine else model.family
        self.transform = InputTransform(self.config.preprocessing)
        self._engine = engine

    def input(self, source: FoundImage) -> Floats:
        """The model's input [3, size, size] for one image."""
        return self.transform(decode(source, self.transform.min_side))

    def __repr__(self) -> str:
        size = self.config.preprocessing.size
        labels = f"{counted(len(self.labels), 'label')} ({shortened(self.labels, 3)})"
        return f"<Tagger: {labels}, {size} x {size} pixels, on {self.family}>"

    def logits(self, images: Floats, known: Floats | None = None) -> Floats:
        """Logits [B, N] of inputs [B, 3, size, size]; `known` is of `known_labels`, one row per image."""
        return self._engine(images, known) if self._engine else self.model.logits(images, known)

    def known_labels(self, known: Mapping[str, bool] | None) -> Floats | None:
        """What the model is told of an image, [N]: 1 for labels that are there, 0 for absent ones, -1 for all others.

        None if nothing is known. An unknown name is an error, and so is a model that cannot use it.
        """
        if not known:
            return None
        if not self.model.takes_known:
            raise LabelwiseError(
                "this model cannot use known labels; leave them out, or train a head that can",
                options={"head": "c-tran"},
            )
        if self.config.task == "single-label":
            raise LabelwiseError("a single-label model has one label to find: leave known labels out")
        if not isinstance(known, Mapping):
            raise LabelwiseError('known labels are given with whether they are there: known={"person": True}')
        row = np.full(len(self.labels), -1, np.float32)
        for label, present in known.items():
            if label not in self.labels:
                from labelwise.data.labels import unknown_label  # tables take time to load

                raise unknown_label(str(label), self.labels)
            there: Any = present
            there = there.item() if getattr(there, "ndim", None) == 0 else there  # of NumPy or PyTorch
            if not isinstance(there, bool | int | float) or there not in (0, 1):
                raise LabelwiseError(f"known label {label!r}: {present!r} is neither True (there) nor False (absent)")
            row[self.labels.index(label)] = there
        return row

    def predict(
        self,
        images: ImageSources,
        *,
        batch_size: int = 32,
        progress: ShowProgress = False,
        on_bad_image: OnBadImage | None = None,
        known: Mapping[str, bool] | None = None,
    ) -> Predictions:
        """Predict the labels of images, one prediction per image, in their order.

        Args:
            images: A path, a pattern (`photos/*.jpg`), a folder (searched with all folders in it), an http or https
                URL, bytes, an open file, a PIL image, a NumPy array or torch tensor ([H, W, 3], [3, H, W] or a batch;
                8 bits, or floats between 0 and 1), any mix of these in a list, or a pandas frame with a column of
                them.
            batch_size: Images at a time.
            progress: Whether to show a progress bar, or a function that is told the progress.
            on_bad_image: `error` raises at an image that cannot be decoded, `skip` gives a prediction with an `error`.
                Default: skip with a warning, but raise if no image at all can be decoded.
            known: Labels that are known to be there or not, on all of the images: `{"person": True, "car": False}`.
                They change the scores of the others; their own are 1 and 0. For models that can use them (C-Tran).

        For millions of images use `stream`, which keeps only what it works on in memory.
        """
        sources = images if progress is False else list(find_images(images))
        total = len(sources) if isinstance(sources, list) else None
        stream = self.stream(sources, batch_size=batch_size, on_bad_image=on_bad_image, known=known)
        predictions = Predictions(track(stream, "Predicting", total, progress))
        if on_bad_image is None:
            predictions.warn_of_errors()
        return predictions

    def stream(
        self,
        images: ImageSources,
        *,
        batch_size: int = 32,
        on_bad_image: OnBadImage | None = None,
        known: Mapping[str, bool] | None = None,
    ) -> Iterator[Prediction]:
        """`predict` one after the other: while the model works on a batch, threads decode the next one."""
        if batch_size < 1:
            raise LabelwiseError(f"a batch size of {batch_size} is too small; give 1 or more")
        if on_bad_image is not None and on_bad_image not in get_args(OnBadImage):
            raise unknown_name("on_bad_image", on_bad_image, get_args(OnBadImage))
        told = self.known_labels(known)
        decoded = decode_many(find_images(images), self.transform, ahead=batch_size + 1)
        bad: list[Prediction] = []  # held back until an image can be decoded
        try:
            while batch := list(islice(decoded, batch_size)):
                for prediction in self._batch(batch, on_bad_image, told):
                    if on_bad_image is None and prediction.error is not None:
                        bad.append(prediction)
                        continue
                    on_bad_image = on_bad_image or "skip"
                    yield from bad
                    bad.clear()
                    yield prediction
        finally:
            decoded.close()
        if bad:
            none = f"none of the {len(bad)} images can be decoded; the first: " if len(bad) > 1 else ""
            raise LabelwiseError(f"{none}{bad[0].error}")

    def query_maps(self, source: FoundImage, layer: int | None = None, known: Floats | None = None) -> QueryMaps:
        """Where each query looked in an image, [K, H, W], and the query that answers for each label, [N].

        Args:
            source: The image.
            layer: The decoder layer, counted from 1. Default: the last.
            known: Of `known_labels`, [N].
        """
        evidence = self.model.evidence(self.input(source)[None], None if known is None else known[None])
        maps = evidence.maps(layer)
        if maps is None:
            if isinstance(self.model, ExportedModel):
                raise LabelwiseError(
                    f"the exported model {str(self.model.folder)!r} has no attention maps: its head has none, or they "
                    "were left out; Grad-CAM works on the model that it was made from"
                )
            raise LabelwiseError(
                "this model's head has no attention to show; explain it with Grad-CAM", options={"method": "grad-cam"}
            )
        return maps[0], evidence.label_query

    def scores(self, images: Floats, known: Floats | None = None) -> Doubles:
        """`probabilities` [B, N] of inputs [B, 3, size, size]; those of known labels are 1 and 0."""
        scores = probabilities(self.logits(images, known), self.config)
        if np.isnan(scores).any():
            raise LabelwiseError("the model's scores are not numbers (NaN): its weights are damaged; train it again")
        return scores if known is None else np.where(known < 0, scores, known)

    def _batch(
        self,
        batch: list[tuple[FoundImage, Floats | BadImageError]],
        on_bad_image: OnBadImage | None,
        known: Floats | None,
    ) -> Iterator[Prediction]:
        bad = next((result for _, result in batch if isinstance(result, BadImageError)), None)
        if bad is not None and on_bad_image == "error":
            raise bad.skippable()
        inputs = [result for _, result in batch if not isinstance(result, BadImageError)]
        told = None if known is None else np.tile(known, (len(inputs), 1))
        rows = iter(self.scores(np.stack(inputs), told) if inputs else ())
        maps = partial(self.query_maps, known=known)
        for source, result in batch:
            if isinstance(result, BadImageError):
                yield Prediction(self.config, source, None, str(result))
            else:
                yield Prediction(self.config, source, next(rows), maps=maps)
