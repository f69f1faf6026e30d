"""`labelwise explain`: where a model looked in a picture, whether that is true, and which experts it relies on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from labelwise.cli.common import say
from labelwise.cli.predict import model_and_rest
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write

if TYPE_CHECKING:
    from labelwise.data.table import LabelTable
    from labelwise.model.model import LabelModel


def explain(
    model: str | None = None,
    image: str | None = None,
    /,
    *,
    out: Path | None = None,
    labels: str | None = None,
    top: int = 4,
    method: Literal["attention", "grad-cam"] | None = None,
    layer: int | None = None,
    head: int | None = None,
    check: Annotated[bool, Parameter(negative=())] = False,
    experts: Annotated[bool, Parameter(negative=())] = False,
    data: str | None = None,
    split: str = "test",
    images: int = 200,
    area: float = 0.25,
    on_bad_image: Literal["error", "skip"] = "error",
    workers: int = 2,
    cache: bool = False,
) -> None:
    """Draw a picture and, label by label, where the model looked for it. With --check: whether that is true. With
    --experts: which experts of an HSQ head each label relies on.

    Parameters
    ----------
    model
        A run folder, a model folder or a hub id. Left out, the tagger that comes with labelwise.
    image
        The picture.
    out
        The file to write: .png, .pdf or .svg; of --check .json, of --experts also .html or .json.
    labels
        The labels to show, separated by commas; without it, the best ones.
    top
        How many of the best labels to show.
    method
        attention, or grad-cam, which every head can do; without it, attention if the head has any.
    layer
        The decoder layer whose attention to show, counted from 1; without it, the last.
    head
        The attention head to show, counted from 1; without it, the mean of all.
    check
        Hide where the model looked in pictures of --data, and as much elsewhere: which lowers the score more?
    experts
        Write the gates' mean weights over the pictures of --data: label by expert, load, dead experts, clusters.
    data
        For --check and --experts: pictures and labels, as for labelwise evaluate.
    split
        The pictures of the data to use: a split, several (train+val), or all.
    images
        How many pictures to check.
    area
        The share of the picture that --check hides.
    on_bad_image
        For --experts: stop at a picture that cannot be decoded, or leave it out, as --check does.
    workers
        Processes that decode pictures.
    cache
        For --experts: keep the backbone's features on disk, and use those that are there.
    """
    given = [argument for argument in (model, image) if argument is not None]
    model, pictures = model_and_rest(given)
    if len(pictures) > 1:
        raise LabelwiseError(f"{pictures[0]!r} is a picture, not a model; explain one picture at a time")
    if len(pictures) + check + experts != 1:
        raise LabelwiseError("say what to explain: one picture, or --check --data DATA, or --experts --data DATA")
    if pictures:
        _picture(model, Path(pictures[0]), out, labels, top, method, layer, head)
        return
    if data is None:
        raise LabelwiseError(f"{'--check' if check else '--experts'} needs pictures: add --data DATA")
    if check:
        _check(model, data, split, out, method, layer, head, images, area, workers)
    else:
        _experts(model, data, split, out, on_bad_image, workers, cache)


def _picture(
    model: str,
    image: Path,
    out: Path | None,
    labels: str | None,
    top: int,
    method: Literal["attention", "grad-cam"] | None,
    layer: int | None,
    head: int | None,
) -> None:
    from labelwise.reports.figures import check_can_draw

    if top < 1:
        raise LabelwiseError(f"--top {top}: give 1 or more")
    if out is None:
        raise LabelwiseError("say where to draw: add --out why.png")
    check_can_draw(out)
    if image.is_dir():
        raise LabelwiseError(f"{str(image)!r} is a folder; name one picture")
    from labelwise.analysis.maps import describe, maps_of
    from labelwise.engines.load import load, require_network
    from labelwise.reports.figures import save_explanation

    tagger = load(model)
    prediction = tagger.predict(image)[0]
    shown = [name.strip() for name in labels.split(",")] if labels else list(prediction.all_scores)[:top]
    network = require_network(tagger.model)
    maps = maps_of(network, prediction.open_image(), shown, method=method, layer=layer, head=head)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_explanation(prediction, maps, out, describe(network, method, layer, head))
    say(f"{out}: {', '.join(shown)}")


def _check(
    model: str,
    data: str,
    split: str,
    out: Path | None,
    method: Literal["attention", "grad-cam"] | None,
    layer: int | None,
    head: int | None,
    images: int,
    area: float,
    workers: int,
) -> None:
    from labelwise.analysis.masking import masking_check

    if images < 2 or not 0 < area < 1:
        raise LabelwiseError(f"--images {images} --area {area:g}: give 2 images or more and an area between 0 and 1")
    if out is not None and out.suffix.lower() != ".json":
        raise LabelwiseError(f"--check writes JSON; name a .json file, not {str(out)!r}")
    network, table = _open(model, data, split)
    result = masking_check(network, table, images, method=method, layer=layer, head=head, area=area, workers=workers)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        content = {"model": model, "data": data, "split": split, **result.to_dict()}
        atomic_write(out, json.dumps(content, indent=1) + "\n")
    say(str(result))


def _experts(
    model: str,
    data: str,
    split: str,
    out: Path | None,
    on_bad_image: Literal["error", "skip"],
    workers: int,
    cache: bool,
) -> None:
    from labelwise.analysis.experts import check_has_experts, expert_use
    from labelwise.features import FeatureCache
    from labelwise.reports.expert_sections import check_file, expert_words, write_experts

    if out is not None:
        check_file(out)
    network, table = _open(model, data, split)
    check_has_experts(network.config)  # before the features are computed
    reading: dict[str, Any] = {"on_bad_image": on_bad_image, "workers": workers}
    features = None
    if cache:
        features = FeatureCache.build(table, network.backbone, network.config.preprocessing, flips=False, **reading)
    run = model if Path(model).is_dir() else None
    use = expert_use(network, table, run=run, features=features, **reading)
    if out is not None:
        write_experts(use, out)
    for sentence in expert_words(use):
        say(sentence)
    if out is not None:
        say(f"written: {out}")


def _open(model: str, data: str, split: str) -> tuple[LabelModel, LabelTable]:
    import torch

    from labelwise.data.sources import open_data
    from labelwise.model.model import load_model
    from labelwise.training.run import with_splits_of_run

    network = load_model(model).to("cuda" if torch.cuda.is_available() else "cpu")
    table = with_splits_of_run(open_data(data), model)
    return network, table.part(split)
