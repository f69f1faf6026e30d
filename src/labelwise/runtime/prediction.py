"""What a model says about an image: from logits to scores, from scores to labels, and the result for people."""

from __future__ import annotations

import copy
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, field_validator, model_validator

from labelwise.core.arrays import Doubles, Floats, Ints
from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.tables import to_frame
from labelwise.core.terminal import visible
from labelwise.data.decode import FoundImage, decode, is_url
from labelwise.data.images import BadImageError, Encoded
from labelwise.data.preprocessing import Preprocessing

if TYPE_CHECKING:
    import pandas

QueryMaps = tuple[Floats, Ints]  # where each query looked, [K, H, W]; each label's query, [N]
_THUMBNAIL = 96  # pixels high, in notebooks
_ROWS_SHOWN = 20


class TaggerConfig(Config):
    """The part of a model's config that an exported model needs, too; it knows nothing of PyTorch."""

    labels: tuple[str, ...] = Field(min_length=1)
    preprocessing: Preprocessing
    task: Literal["multi-label", "single-label"] = "multi-label"  # scores are sigmoids, or one softmax
    # Calibration: a score is the sigmoid of (logit - offset) / temperature. Asymmetric losses push all logits up
    temperature: float = Field(default=1.0, gt=0)
    offset: float = 0.0
    thresholds: tuple[float, ...] | None = None  # a label applies where its score reaches it; None: 0.5 for all

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        repeated = [label for label, times in Counter(labels).items() if times > 1]
        if repeated:
            raise ValueError(f"these names occur more than once: {', '.join(repeated[:5])}")
        return labels

    @model_validator(mode="after")
    def _one_threshold_per_label(self) -> Self:
        if self.thresholds is not None and len(self.thresholds) != len(self.labels):
            raise ValueError(f"{len(self.thresholds)} thresholds for {len(self.labels)} labels")
        return self

    @property
    def label_thresholds(self) -> tuple[float, ...]:
        """The score from which each label applies, [N]: the fitted ones, else 0.5."""
        return self.thresholds or (0.5,) * len(self.labels)


class Evidence(NamedTuple):
    """A network's logits with what led to them.

    Attributes:
        logits: [B, N].
        label_query: [N], the query that answers for each label.
        attention: [B, layers, K, H, W], where each query looked, the mean of the attention heads; None: not known.
        gates: [B, layers, K, n_t + n_s], the weights of HSQ's experts, the query's own first; None: not known.
    """

    logits: Floats
    label_query: Ints
    attention: Floats | None = None
    gates: Floats | None = None

    def maps(self, layer: int | None = None) -> Floats | None:
        """Where each query looked, [B, K, H, W], in a decoder layer counted from 1; default: the last."""
        if self.attention is None:
            return None
        layers = self.attention.shape[1]
        if layer is not None and not 1 <= layer <= layers:
            raise LabelwiseError(f"layer {layer}: this model's attention has layers 1 to {layers}")
        chosen: Floats = self.attention[:, -1 if layer is None else layer - 1]
        return chosen


def attention_caption(layer: int | None, head: int | None = None) -> str:
    """What a map of attention shows.

    >>> attention_caption(None), attention_caption(1, 3)
    ('attention of the last layer, mean of the heads', 'attention of layer 1, head 3')
    """
    heads = "mean of the heads" if head is None else f"head {head}"
    return f"attention of {'the last layer' if layer is None else f'layer {layer}'}, {heads}"


def probabilities(logits: Floats, config: TaggerConfig) -> Doubles:
    """Scores [..., N] from logits [..., N]: independent probabilities, or a distribution over the labels.

    Everything that shows, compares or fits scores uses this function. Double precision: near 1, single precision would
    make ties of different scores.

    >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing(), temperature=2.0)
    >>> probabilities(np.float32([[0.0, 4.0]]), config).round(4).tolist()
    [[0.5, 0.8808]]
    """
    z = (logits.astype(np.float64) - config.offset) / config.temperature
    if config.task == "multi-label":
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            log_scores = -np.logaddexp(0, -z)
    else:
        z = z - z.max(axis=-1, keepdims=True)
        log_scores = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    scores: Doubles = np.exp(log_scores)
    return scores


def ranking_values(logits: Floats, config: TaggerConfig) -> Floats | Doubles:
    """What images and labels are ranked by [..., N]: logits of independent labels, because the sigmoids of sure
    predictions round to ties; or one softmax an image."""
    return logits if config.task == "multi-label" else probabilities(logits, config)


def decide(scores: Doubles, config: TaggerConfig) -> NDArray[np.bool_]:
    """Which labels apply, [..., N], from `probabilities` [..., N].

    A label applies if its score reaches its threshold; a single-label model gives its best label, always. Predictions,
    metrics, the server and reports all decide by this function.

    >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing(), thresholds=(0.3, 0.6))
    >>> decide(np.array([0.3, 0.5]), config).tolist()
    [True, False]
    """
    if config.task == "single-label":
        best: NDArray[np.bool_] = scores.argmax(axis=-1)[..., None] == np.arange(scores.shape[-1])
        return best
    passing: NDArray[np.bool_] = scores >= np.array(config.label_thresholds)
    return passing


def check_threshold(threshold: float, task: str) -> None:
    """An error if `threshold` cannot be one for all labels."""
    if not 0 <= threshold <= 1:
        raise LabelwiseError(f"a threshold of {threshold:g} is out of range; scores lie between 0 and 1")
    if task == "single-label":
        raise LabelwiseError("a single-label model always gives its best label; leave the threshold out")


def known_from(present: Sequence[str] | None, absent: Sequence[str] | None) -> dict[str, bool] | None:
    """The `known` of `Tagger.predict` from the labels that are there and those that are not; None: nothing is known.

    >>> known_from(["person"], ["car"]), known_from(None, None)
    ({'person': True, 'car': False}, None)
    """
    if any(names is not None and not names for names in (present, absent)):
        raise LabelwiseError("no known label is named; leave the option out, or name one", options={"known": "person"})
    twice = set(present or ()) & set(absent or ())
    if twice:
        raise LabelwiseError(f"{min(twice)!r} cannot be known to be there and to be absent; name it once")
    return {**dict.fromkeys(present or (), True), **dict.fromkeys(absent or (), False)} or None


class Prediction:
    """What the model says about one image. A notebook shows it with a thumbnail.

    Args:
        config: The model's config.
        source: The image.
        scores: `probabilities` [N], in the order of the model's labels; None with an `error`.
        error: Why the image cannot be decoded.
        maps: Finds the model's attention maps for an image.

    Attributes:
        image: The path or URL as given, the name of bytes, or the image itself.
        error: Why there are no labels; None if there are.
        labels: The labels that apply, best first: each reaches its own threshold (a single-label model gives its best
            label, always).
        scores: Their scores.

    Example:
        >>> config = TaggerConfig(labels=("cat", "dog"), preprocessing=Preprocessing())
        >>> prediction = Prediction(config, "a.jpg", np.array([0.25, 0.75]))
        >>> prediction
        <Prediction a.jpg: dog 0.75>
        >>> prediction.labels, prediction.all_scores
        (['dog'], {'dog': 0.75, 'cat': 0.25})
    """

    def __init__(
        self,
        config: TaggerConfig,
        source: FoundImage,
        scores: Doubles | None,
        error: str | None = None,
        maps: Callable[[FoundImage], QueryMaps] | None = None,
    ) -> None:
        self.image: str | Image.Image = source.name if isinstance(source, Encoded) else source
        self.error = error
        self._config, self._source, self._find_maps = config, source, maps
        self._scores = np.zeros(0) if scores is None else scores  # [N], in the order of the model's labels

    @cached_property
    def _chosen(self) -> list[int]:
        """The labels that apply, as numbers, best first."""
        if self.error is not None:
            return []
        passing = np.flatnonzero(decide(self._scores, self._config))
        return [int(i) for i in passing[np.argsort(-self._scores[passing], kind="stable")]]

    def limited(self, top: int | None, threshold: float | None = None) -> Prediction:
        """The same prediction with the labels of `choose`."""
        if self.error is not None or top is None:
            return self
        other = copy.copy(self)
        other.__dict__["_chosen"] = [self._config.labels.index(label) for label in self.choose(top, threshold)]
        return other

    @property
    def labels(self) -> list[str]:
        return [self._config.labels[i] for i in self._chosen]

    @property
    def scores(self) -> list[float]:
        return [float(self._scores[i]) for i in self._chosen]

    @property
    def all_scores(self) -> dict[str, float]:
        """Every label's score, best first."""
        order = np.argsort(-self._scores, kind="stable")
        return {self._config.labels[i]: float(self._scores[i]) for i in order}

    @property
    def thresholds(self) -> dict[str, float]:
        return dict(zip(self._config.labels, self._config.label_thresholds, strict=True))

    def choose(self, top: int | None = None, threshold: float | None = None) -> dict[str, float]:
        """Labels with their scores, best first: those that apply, or another choice.

        Args:
            top: Give the best labels, this many, whatever their thresholds; with `threshold`, at most this many.
            threshold: One threshold for all labels.
        """
        if top is not None and top < 1:
            raise LabelwiseError(f"top={top} is too small; ask for 1 label or more")
        if threshold is not None:
            check_threshold(threshold, self._config.task)
            chosen = {label: score for label, score in self.all_scores.items() if score >= threshold}
        else:
            chosen = dict(zip(self.labels, self.scores, strict=True)) if top is None else self.all_scores
        return dict(list(chosen.items())[:top])

    def to_dict(
        self, *, top: int | None = None, threshold: float | None = None, all_scores: bool = False
    ) -> dict[str, Any]:
        """Plain values, ready for JSON: `image` (None if it has no name), and `labels` of `choose` or the `error`."""
        about: dict[str, Any] = {"image": self.image if isinstance(self.image, str) else None}
        if self.error is not None:
            return about | {"error": self.error}
        about["labels"] = self.choose(top, threshold)
        return about | {"all_scores": self.all_scores} if all_scores else about

    @property
    def preprocessing(self) -> Preprocessing:
        """How the image was fitted into the model's square input: says which part of it `attention` covers."""
        return self._config.preprocessing

    def open_image(self) -> Image.Image:
        """The image itself: upright 8-bit RGB."""
        return decode(self._source)

    def attention(self, label: str) -> Floats:
        """Where the model looked for `label`, [H, W], sums to 1.

        The map covers what the model saw of the image: all of it, unless the model's preprocessing crops or pads.
        The image runs through the model again on the first call.
        """
        labels = self._config.labels
        if label not in labels:
            from labelwise.data.labels import unknown_label  # tables take time to load

            raise unknown_label(label, labels)
        maps, label_query = self._maps
        chosen: Floats = maps[label_query[labels.index(label)]]
        return chosen

    @cached_property
    def _maps(self) -> QueryMaps:
        """The maps of all queries, [K, H, W], and the query of each label, [N]."""
        if self.error is not None:
            raise LabelwiseError(self.error)
        if self._find_maps is None:
            raise LabelwiseError("this prediction has no model that could show its attention")
        return self._find_maps(self._source)

    @property
    def name(self) -> str:
        """The image's path, URL or name, or its size if it has none."""
        return self.image if isinstance(self.image, str) else f"image of {self.image.width} x {self.image.height}"

    def __str__(self) -> str:
        found = ", ".join(f"{label} {score:.2f}" for label, score in zip(self.labels, self.scores, strict=True))
        return visible(f"{self.name}: {self.error or found or 'no label'}")

    def __repr__(self) -> str:
        return f"<Prediction {self}>"

    def _repr_html_(self) -> str:
        return Predictions([self])._repr_html_()

    def _row(self) -> str:
        """A row of the table that a notebook shows."""
        found = " ".join(
            f"<b>{escape(label)}</b> {score:.2f}" for label, score in zip(self.labels, self.scores, strict=True)
        )
        cell = escape(self.error) if self.error is not None else found or "no label"
        return f"<tr><td>{self._thumbnail()}</td><td>{escape(self.name)}</td><td>{cell}</td></tr>"

    def _thumbnail(self) -> str:
        if isinstance(self._source, str) and is_url(self._source):
            return f'<img src="{escape(self._source)}" style="max-height:{_THUMBNAIL}px" alt="">'
        if self.error is not None:
            return ""
        try:
            image = decode(self._source, min_side=_THUMBNAIL)
        except BadImageError:  # the file was there when it was predicted
            return ""
        image.thumbnail((2 * _THUMBNAIL, _THUMBNAIL))
        content = BytesIO()
        image.save(content, "JPEG", quality=80)
        return f'<img src="data:image/jpeg;base64,{b64encode(content.getvalue()).decode()}" alt="">'


class Predictions(list[Prediction]):
    """Predictions in the order of their images: a list that prints well and becomes a pandas frame."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Prediction: ...

    @overload
    def __getitem__(self, index: slice) -> Predictions: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Prediction | Predictions:
        return Predictions(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def warn_of_errors(self) -> None:
        """Without a look at `error`, an image that was skipped could be taken for one without labels."""
        bad = [prediction for prediction in self if prediction.error is not None]
        if bad:
            warnings.warn(
                f"{len(bad)} of {counted(len(self), 'image')} skipped, see `error`; the first: {bad[0].error}",
                stacklevel=3,
            )

    def to_pandas(self, *, all_scores: bool = False) -> pandas.DataFrame:
        """A frame with one row per image: `image`, `labels`, `scores` and `error`.

        Args:
            all_scores: Give a column with the score of each label instead of `labels` and `scores`.
        """
        rows: list[dict[str, Any]] = []
        for one in self:
            found = one.all_scores if all_scores else {"labels": one.labels, "scores": one.scores}
            rows.append({"image": one.name, **found, "error": one.error})
        return to_frame(rows, "image")

    def __repr__(self) -> str:
        shown = [f"  {prediction}" for prediction in self[:_ROWS_SHOWN]]
        if len(self) > _ROWS_SHOWN:
            shown.append(f"  … {len(self) - _ROWS_SHOWN:,} more")
        return "\n".join([f"<Predictions: {len(self):,} image{'' if len(self) == 1 else 's'}>", *shown])

    def _repr_html_(self) -> str:
        rows = "".join(prediction._row() for prediction in self[:_ROWS_SHOWN])
        more = f"<p>… {len(self) - _ROWS_SHOWN:,} more</p>" if len(self) > _ROWS_SHOWN else ""
        return f"<table><tr><th></th><th>image</th><th>labels</th></tr>{rows}</table>{more}"
