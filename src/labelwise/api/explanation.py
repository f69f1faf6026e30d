"""`lw.explain`: where a model looked, whether that is true, and which experts its labels rely on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.api.inputs import check_reader_options, model_path, open_model, open_table, require, require_choice
from labelwise.api.prediction import check_paths, open_tagger
from labelwise.core.errors import LabelwiseError, torch_needed
from labelwise.data.images import OnBadImage
from labelwise.data.labels import unknown_label
from labelwise.engines.load import require_network
from labelwise.reports.explanation import check_can_draw_maps, save_explanation
from labelwise.reports.overlay import data_uri, overlay
from labelwise.runtime.exported import ExportedModel, find_export
from labelwise.runtime.folder import find_folder
from labelwise.runtime.prediction import Prediction, attention_caption

if TYPE_CHECKING:
    from labelwise.analysis.experts import ExpertUse
    from labelwise.analysis.masking import MaskingCheck
    from labelwise.api.inputs import Data
    from labelwise.api.prediction import AnyModel
    from labelwise.data.decode import ImageSource
    from labelwise.model.model import LabelModel
    from labelwise.training.run import Run

Method = Literal["attention", "grad-cam"]
_PATHS = (str, os.PathLike)  # not a model in memory


@dataclass(frozen=True, repr=False)
class Explanation:
    """Where a model looked for some labels in one image. A notebook shows it as a figure.

    Attributes:
        prediction: Labels and scores of the image.
        maps: How much each place counted [H, W], for each label.
        method: What the maps are, for people.
    """

    prediction: Prediction
    maps: dict[str, NDArray[np.floating]]
    method: str

    def save(self, path: str | Path) -> None:
        """Draw the image and a heat map per label, as strong as its score, into a .png, .jpg, .pdf or .svg file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_explanation(self.prediction, self.maps, path, self.method)

    def __repr__(self) -> str:
        return f"Explanation({str(self.prediction.image)!r}, {', '.join(self.maps)}; {self.method})"

    def _repr_html_(self) -> str:
        """The image beside itself with each map laid over it."""
        from labelwise.reports.html import part

        image, scores = self.prediction.open_image(), self.prediction.all_scores
        shown = [
            (
                f"{label} {scores[label]:.2f}",
                data_uri(overlay(image, values, self.prediction.preprocessing, score=scores[label])),
            )
            for label, values in self.maps.items()
        ]
        return str(part("parts.html", "explanation", image=data_uri(image), maps=shown, method=self.method))

    def _repr_png_(self) -> bytes:
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "maps.png")
            return (Path(folder) / "maps.png").read_bytes()


def explain(
    image: ImageSource,
    model: AnyModel = None,
    *,
    out: str | Path | None = None,
    labels: Sequence[str] | None = None,
    top: int = 4,
    method: Method | None = None,
    layer: int | None = None,
    attention_head: int | None = None,
    known: Mapping[str, bool] | None = None,
) -> Explanation:
    """Show where a model looked in an image, label by label.

    Args:
        image: A path or an image in memory.
        model: A run, a model folder, an exported model, a hub id, a model in memory or a `Tagger`. Default: the
            bundled tagger.
        out: Also draw it into this file: .png, .jpg, .pdf or .svg.
        labels: The labels to show. Default: the best ones.
        top: How many of the best labels to show.
        method: `attention`, or `grad-cam`, which works for every head but not for exported models. Default: attention
            if the head has any.
        layer: The decoder layer whose attention to show, counted from 1. Default: the last.
        attention_head: The attention head to show, counted from 1; exported models have none. Default: the mean of all.
        known: Labels that are known to be there or not: `{"person": True, "car": False}`, for models that can use
            them (C-Tran). The best of the other labels are shown.

    Example:
        >>> import labelwise as lw
        >>> lw.explain("photo.jpg", out="why.png").maps["dog"].shape  # doctest: +SKIP
        (7, 7)
    """
    require(top=(top, 1))
    require_choice(method=(method, Method))
    check_paths([image])
    if out is not None:
        if isinstance(image, str | Path) and os.path.realpath(out) == os.path.realpath(image):
            raise LabelwiseError(f"{str(out)!r} is the image itself; name another file", options={"out": "why.png"})
        check_can_draw_maps(Path(out))
    if isinstance(image, str | Path) and Path(image).is_dir():
        raise LabelwiseError(f"{str(image)!r} is a folder; name one image")
    tagger = open_tagger(model)
    for label in labels or ():
        if label not in tagger.labels:
            raise unknown_label(label, tagger.labels)
    told = tagger.known_labels(known)
    predictions = tagger.predict(image, known=known)
    if len(predictions) != 1:
        raise LabelwiseError(f"explain one image at a time, not {len(predictions)}")
    prediction = predictions[0]
    best = sorted(prediction.all_scores, key=lambda label: label in (known or ()))  # what was told is no answer
    shown = best[:top] if labels is None else list(labels)
    if isinstance(tagger.model, ExportedModel) and method != "grad-cam" and attention_head is None:
        found, query = tagger.query_maps(prediction.open_image(), layer, told)
        maps = {label: found[query[tagger.labels.index(label)]] for label in shown}
        caption = attention_caption(layer)
    else:
        # Gradients and single heads need the network itself, which an export may come with.
        opened = tagger.model
        network = open_model(opened.folder) if isinstance(opened, ExportedModel) else require_network(opened)
        from labelwise.analysis.maps import map_caption, maps_of

        maps = maps_of(
            network, prediction.open_image(), shown, method=method, layer=layer, head=attention_head, known=told
        )
        caption = map_caption(network, method, layer, attention_head)
    explanation = Explanation(prediction, {**maps}, caption)
    if out is not None:
        explanation.save(out)
    return explanation


def check_explanations(
    data: Data,
    model: str | Path | Run | LabelModel | None = None,
    *,
    split: str | None = None,
    images: int = 200,
    area: float = 0.25,
    method: Method | None = None,
    layer: int | None = None,
    attention_head: int | None = None,
    workers: int = 0,
    **reader: Any,
) -> MaskingCheck:
    """Test whether a model's maps are true: hide where it looked, and as much elsewhere. Which lowers the score more?

    Args:
        data: A dataset: a path, `format:path`, a DataFrame or a table.
        model: A run, a model folder, a hub id or a model in memory. Default: the bundled tagger.
        split: The images to use: a split, several (`train+val`), or `all`. Default: `test`; all images of a table
            without splits.
        images: How many of them to check.
        area: The share of the image that is hidden.
        method: `attention` or `grad-cam`. Default: attention if the head has any.
        layer: The decoder layer, counted from 1. Default: the last.
        attention_head: The attention head, counted from 1. Default: the mean of all.
        workers: Threads that decode images; 0: one per core.
        **reader: Options of the data's reader: `image_column`, `label_column`, `separator`, `root` and others.

    Example:
        >>> import labelwise as lw
        >>> print(lw.check_explanations("photos.csv", "runs/first"))  # doctest: +SKIP
    """
    require(images=(images, 2), workers=(workers, 0))
    check_reader_options(reader, check_explanations)
    if not 0 < area < 1:
        raise LabelwiseError(f"area must be between 0 and 1, not {area:g}")
    whole = open_table(data, model, **reader)
    table = whole.part(whole.chosen_split(split))
    with torch_needed():
        from labelwise.analysis.masking import masking_check
    return masking_check(
        open_model(model), table, images, method=method, layer=layer, head=attention_head, area=area, workers=workers
    )


def explain_experts(
    data: Data,
    model: str | Path | Run | LabelModel | None = None,
    *,
    split: str | None = None,
    on_bad_image: OnBadImage = "error",
    workers: int = 0,
    cache: bool = False,
    **reader: Any,
) -> ExpertUse:
    """Show which experts of an HSQ head each label relies on: the gates' mean weights over a dataset.

    Args:
        data: A dataset: a path, `format:path`, a DataFrame or a table.
        model: A run, a model folder, a hub id or a model in memory. Default: the bundled tagger.
        split: The images to use: a split, several (`train+val`), or `all`. Default: `test`; all images of a table
            without splits.
        on_bad_image: `skip` leaves out images that cannot be decoded.
        workers: Threads that decode images; 0: one per core.
        cache: Keep the backbone's features on disk, and use those that are there.
        **reader: Options of the data's reader: `image_column`, `label_column`, `separator`, `root` and others.

    Example:
        >>> import labelwise as lw
        >>> use = lw.explain_experts("photos.csv", "runs/first")  # doctest: +SKIP
    """
    require(workers=(workers, 0))
    check_reader_options(reader, explain_experts)
    from labelwise.analysis.experts import check_has_experts, expert_use, exported_use

    whole = open_table(data, model, **reader)
    table = whole.part(whole.chosen_split(split))
    exported = find_export(find_folder(model_path(model))) if model is None or isinstance(model, _PATHS) else None
    if exported is not None and not cache:
        return exported_use(exported, table, on_bad_image=on_bad_image, workers=workers)
    network = open_model(model)
    check_has_experts(network.config)  # before the features are computed
    reading: dict[str, Any] = {"on_bad_image": on_bad_image, "workers": workers}
    features = None
    if cache:
        from labelwise.features import FeatureCache

        features = FeatureCache.build(table, network.backbone, network.config.preprocessing, flips=False, **reading)
    in_memory = model is not None and hasattr(model, "forward")
    folder = None if in_memory else model_path(model)  # type: ignore[arg-type]
    run = folder if folder is not None and Path(folder).is_dir() else None
    return expert_use(network, table, run=run, features=features, **reading)
