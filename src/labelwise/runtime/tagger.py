"""Use a model: pictures in, labels with scores out, and where it looked on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.images import BadImageError, OnBadImage
from labelwise.data.preprocessing import InputTransform
from labelwise.data.sources import Picture, Sources, decode, find_images
from labelwise.runtime.exported import Exported, find_export
from labelwise.runtime.prediction import Prediction, check_threshold
from labelwise.runtime.sessions import Engine, EngineName, Floats, thread_count

if TYPE_CHECKING:
    from labelwise.model.model import LabelModel


class Tagger:
    """A model ready for pictures: one in memory, which is put into evaluation mode, or an exported one.

    `engine` is what runs it; without it a model runs by itself, where its parameters are. `threshold` replaces the
    thresholds that the model carries by one for all labels.
    """

    def __init__(
        self, model: LabelModel | Exported, *, engine: Engine | None = None, threshold: float | None = None
    ) -> None:
        self.config, self._model = model.config, model
        self.labels = self.config.labels
        if threshold is not None:
            check_threshold(threshold, self.config.task)
        limits = [threshold] * len(self.labels) if threshold is not None else self.config.thresholds
        self.thresholds = dict(zip(self.labels, limits or [0.5] * len(self.labels), strict=True))
        # As exact as the scores are, or one equal to its threshold would not pass it: [N].
        self.threshold_values = np.array(list(self.thresholds.values()), np.float32)
        self._transform = InputTransform(self.config.preprocessing)
        if isinstance(model, Exported):
            self.engine = engine or model.engine()
        else:
            from labelwise.backbones.timm_backbone import put_channels_last
            from labelwise.engines.convert import TorchEngine

            self.engine = engine or TorchEngine(model)
            put_channels_last(model.eval())

    @property
    def model(self) -> LabelModel:
        """The model in memory, for everything but predicting."""
        if isinstance(self._model, Exported):
            raise LabelwiseError(
                f"{str(self._model.folder)!r} is an exported model: it predicts, and shows neither attention nor "
                "anything else of its inside; load the model it was made from"
            )
        return self._model

    def predict(
        self, images: Sources, *, batch_size: int = 32, progress: bool = False, on_bad_image: OnBadImage = "error"
    ) -> list[Prediction]:
        """One prediction per picture, in their order.

        `images` is a path, a PIL picture, `Encoded` bytes with a name, a folder (searched with all folders in it, in
        alphabetical order) or any mix of these in a list. A picture that cannot be decoded raises, or with
        `on_bad_image="skip"` gives a prediction with an `error`. Millions of pictures: use `stream`, which keeps only
        what it works on in memory.
        """
        if not progress:
            return list(self.stream(images, batch_size=batch_size, on_bad_image=on_bad_image))
        from rich.console import Console
        from rich.progress import track

        sources = list(find_images(images))
        predictions = self.stream(sources, batch_size=batch_size, on_bad_image=on_bad_image)
        return list(track(predictions, "Predicting", len(sources), console=Console(stderr=True), transient=True))

    def stream(
        self, images: Sources, *, batch_size: int = 32, on_bad_image: OnBadImage = "error"
    ) -> Iterator[Prediction]:
        """`predict` one after the other: while the model works on a batch, threads decode the next one."""
        if batch_size < 1:
            raise LabelwiseError(f"a batch size of {batch_size} is too small; give 1 or more")
        if on_bad_image not in get_args(OnBadImage):
            raise unknown_name("on_bad_image", on_bad_image, get_args(OnBadImage))
        waiting: deque[tuple[Picture, Future[Floats]]] = deque()
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

    def query_maps(self, source: Picture) -> tuple[Floats, NDArray[np.int64]]:
        """Where each query looked in a picture, [K, H, W], and the query that answers for each label, [N]."""
        import torch

        from labelwise.heads import list_heads, preset
        from labelwise.heads.config import CsraConfig, QueryHeadConfig

        looking = QueryHeadConfig | CsraConfig
        if not isinstance(self.model.config.head, looking):
            able = ", ".join(name for name in list_heads() if isinstance(preset(name), looking))
            kind = self.model.config.head.kind
            raise LabelwiseError(f"a model with the head {kind!r} has no attention to show; heads that have: {able}")
        image = torch.from_numpy(self._input(source))[None]  # [1, 3, size, size]
        with torch.inference_mode():
            details = self.model.details(image.to(next(self.model.parameters()).device))
        return details.attention[0].float().cpu().numpy(), details.label_query.cpu().numpy()

    def _input(self, source: Picture) -> Floats:
        """[3, size, size]; runs in a thread."""
        return self._transform(decode(source, min_side=self._transform.min_side))

    def _batch(self, waiting: list[tuple[Picture, Future[Floats]]], on_bad_image: OnBadImage) -> Iterator[Prediction]:
        inputs: list[Floats] = []
        errors: list[str | None] = []
        for _, future in waiting:
            try:
                inputs.append(future.result())
                errors.append(None)
            except BadImageError as bad:
                if on_bad_image == "error":
                    raise LabelwiseError(f"{bad}. Fix it, or add --on-bad-image skip.") from None
                errors.append(str(bad))
        rows = iter(self._scores(np.stack(inputs)) if inputs else ())
        for (source, _), error in zip(waiting, errors, strict=True):
            yield Prediction(self, source, next(rows) if error is None else None, error)

    def _scores(self, images: Floats) -> Floats:
        scores = self.config.scores(self.engine(images))  # [B, N]
        if np.isnan(scores).any():
            raise LabelwiseError("the model's scores are not numbers (NaN): its weights are damaged; train it again")
        return scores


def load(
    source: str | Path | None = None,
    *,
    threshold: float | None = None,
    engine: EngineName | None = None,
    labels: Sequence[str] | None = None,
    images: int = 0,
    batch_size: int = 32,
    say: Callable[[str], None] | None = None,
    **hub_options: Any,
) -> Tagger:
    """A tagger from a run folder, a model folder, an exported model or a hub id, on the GPU if there is one; without
    any, the one that comes with labelwise.

    `engine` runs it: torch, onnxruntime, openvino, or with "auto" the fastest of these, which is measured (once, about
    half a minute) when at least 500 `images` are to be predicted; `say` is told what was chosen. None is the model as
    it is, or what the exported file is for. `labels` are other labels for a model that works on words.
    """
    source = default_model() if source is None else source
    exported = find_export(source)
    if exported is not None:
        if labels is not None:
            raise LabelwiseError(
                f"the labels of the exported model {str(source)!r} are fixed; name the one it was made from"
            )
        return Tagger(exported, engine=exported.engine(engine or "auto"), threshold=threshold)
    import torch

    from labelwise.engines.choose import open_engine
    from labelwise.model.model import load_model

    model = load_model(source, **hub_options)
    if labels is not None:
        model = model.with_labels(labels).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if engine is None:
        return Tagger(model, threshold=threshold)
    size = model.config.preprocessing.size
    runner = open_engine(engine, model, size=size, images=images, batch_size=batch_size, say=say)
    return Tagger(model, engine=runner, threshold=threshold)
