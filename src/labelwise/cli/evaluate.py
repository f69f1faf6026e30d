"""`labelwise evaluate`: how good a model is on a dataset, how sure that is, and thresholds that fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from labelwise.cli.common import say
from labelwise.core.errors import LabelwiseError, shortened
from labelwise.core.files import atomic_write
from labelwise.data.labels import FROM_DATA, label_list, unseen_labels
from labelwise.data.table import LabelTable
from labelwise.engines.load import full_config, open_model
from labelwise.evaluation.inference import InferenceOptions, engine_for
from labelwise.features import FeatureCache
from labelwise.model.model import LabelModel
from labelwise.runtime.exported import ExportedModel
from labelwise.training.recipe import load_recipe
from labelwise.training.run import RECIPE, find_run, with_splits_of_run

if TYPE_CHECKING:
    from labelwise.evaluation.inference import TableLogits


def evaluate(
    model: str | None = None,
    /,
    *,
    data: str,
    split: str = "test",
    json_file: Annotated[Path | None, Parameter("--json")] = None,
    flip: Annotated[bool, Parameter(negative=())] = False,
    scales: str = "1.0",
    fit_thresholds: str | None = None,
    fit_temperature: Annotated[bool, Parameter(negative=())] = False,
    fit_on: str | None = None,
    save: Annotated[bool, Parameter(negative=())] = False,
    unseen: str | None = None,
    bootstrap: int = 1000,
    on_bad_image: Literal["error", "skip"] = "error",
    ignore_extra_labels: Annotated[bool, Parameter(negative=())] = False,
    batch_size: int = 32,
    workers: int = 2,
    cache: bool = False,
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
) -> None:
    """Measure a model on a dataset: every metric with a confidence interval, and a table of all labels.

    Parameters
    ----------
    model
        A run folder, a model folder, an exported model or a hub id. Left out, the tagger that comes with labelwise.
    data
        A path (its format is recognised) or format:path, for example photos.csv or voc:/data/VOCdevkit.
    split
        The images to measure on: a split, several (train+val), or all.
    json_file
        Also write everything as JSON into this file.
    flip
        Average over each picture and its mirror image.
    scales
        Average over these multiples of the model's input size, for example 0.8,1.0,1.2.
    fit_thresholds
        Fit a threshold for each label: f1, or a target such as precision=0.9 or recall=0.8.
    fit_temperature
        Fit a temperature and an offset, so that scores are probabilities.
    fit_on
        The split to fit on, best one that is not measured on; without it, the one of --split.
    save
        Write what was fitted into the model; without it, it is used for this evaluation only.
    unseen
        Zero-shot: labels that the training did not see, a file with one in each line or names with commas between. They
        are measured alone (ZSL) and with the seen ones (GZSL). Without it: those of the run's recipe. none: no such.
    bootstrap
        How many samples of the images to draw for the confidence intervals; 0 for none.
    on_bad_image
        Stop at a picture that cannot be decoded, or skip it and list it.
    ignore_extra_labels
        Leave out labels of the data that the model does not have.
    batch_size
        Pictures at a time.
    workers
        Processes that decode pictures.
    cache
        Keep the backbone's features on disk, and use those that are there.
    engine
        What runs the model. auto: an exported model's own; of others the fastest that gives the same logits, measured
        once if there are many pictures, else torch.
    """
    from labelwise.bundled import default_model
    from labelwise.data.sources import open_data
    from labelwise.evaluation import evaluate as measure
    from labelwise.evaluation import match_labels, predict_logits
    from labelwise.evaluation.thresholds import parse_rule
    from labelwise.evaluation.zero_shot import evaluate_zero_shot, seen_and_unseen
    from labelwise.model.folder import find_folder

    fits = fit_thresholds is not None or fit_temperature
    _check_arguments(model, fits, save, fit_on, bootstrap, batch_size, workers)
    if fit_thresholds is not None:
        parse_rule(fit_thresholds)  # a typing error should not cost a pass over the images
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    views = _numbers(scales)
    if cache and views != [1]:
        raise LabelwiseError("cached features are of one input size; leave out --scales or --cache")
    named, model = model or "the bundled tagger", model or str(default_model())
    network = open_model(model, engine=engine)
    if isinstance(network, ExportedModel):
        if save or cache or unseen or views != [1]:
            raise LabelwiseError("--save, --cache, --unseen and --scales need the model itself, not an exported one")
        network.config = full_config(network)
    whole = with_splits_of_run(open_data(data), model)
    table, fit_table = whole.part(split), whole.part(fit_on or split)
    hidden = unseen_of(unseen, model, whole) if isinstance(network, LabelModel) else ()
    if hidden and fits:
        raise LabelwiseError("thresholds and a temperature are fitted for seen labels alone: add --unseen none")
    # Before the work, not after it.
    labels = seen_and_unseen(network, hidden) if isinstance(network, LabelModel) else network.config.labels
    match_labels(table, labels, ignore_extra=ignore_extra_labels)
    runner = None
    if hidden and engine not in ("auto", "torch"):
        raise LabelwiseError(f"--engine {engine} runs a model as it is: not with --unseen; use torch")
    if not (hidden or cache):  # with a cache, the engine computes the features
        images = len(table) * (2 if flip else 1)
        runner = engine_for(network, engine, images=images, batch_size=batch_size, scales=views, say=_note)

    def options(images: LabelTable) -> InferenceOptions:
        features = None
        if cache and isinstance(network, LabelModel):
            features = FeatureCache.build(
                images,
                network.backbone,
                network.config.preprocessing,
                flips=flip,
                batch_size=batch_size,
                workers=workers,
                on_bad_image=on_bad_image,
                engine=engine,
            )
        return {
            "batch_size": batch_size,
            "workers": workers,
            "on_bad_image": on_bad_image,
            "flip": flip,
            "scales": views,
            "features": features,
            "engine": runner,
        }

    known: dict[str, Any] = {"bootstrap": bootstrap, "ignore_extra_labels": ignore_extra_labels}
    if hidden:
        assert isinstance(network, LabelModel)
        result = evaluate_zero_shot(network, table, hidden, **known, **options(table)).to_dict()
    else:
        predictions = predict_logits(network, table, **options(table))
        fitted = None
        if fits:
            other = fit_on not in (None, split)
            used = predict_logits(network, fit_table, **options(fit_table)) if other else predictions
            fitted = {"on": fit_on or split, **_fit(network, fit_table, used, fit_thresholds, fit_temperature)}
            if shared := len(set(table.images) & set(fit_table.images)):
                _warn(f"{shared:,} images are both fitted and measured on: these numbers are optimistic; see --fit-on")
        result = measure(network, table, predictions=predictions, **known).to_dict() | {"fitted": fitted}
    result["model"] = {"source": named, **result["model"]}
    result["data"] |= {"split": split}
    result["test_time"] = {"flip": flip, "scales": views}
    # First what is kept, then what is shown: `labelwise evaluate … | head` ends the showing early.
    _write(result, json_file)
    if save:
        assert isinstance(network, LabelModel)
        network.save(find_folder(model))
    _show(result)
    if save:
        say(f"{find_folder(model)}: saved what was fitted on {fit_on or split}")


def _fit(
    network: LabelModel | ExportedModel, table: LabelTable, seen: TableLogits, thresholds: str | None, temperature: bool
) -> dict[str, Any]:
    """Fit on the predictions of `table` and give the network what was found; returns what the JSON says about it."""
    from labelwise.evaluation import fit_config, match_labels

    targets = match_labels(table, network.config.labels, ignore_extra=True).targets(seen.rows)
    fit = fit_config(full_config(network), seen.logits, targets, thresholds=thresholds, temperature=temperature)
    network.config = fit.config
    if fit.fallback_labels:
        _warn(f"{len(fit.fallback_labels)} labels got the others' median threshold: {shortened(fit.fallback_labels)}")
    return {
        "thresholds": thresholds,
        "temperature": temperature,
        "labels_by_fallback": list(fit.fallback_labels),
    }


def _write(result: dict[str, Any], json_file: Path | None) -> None:
    if json_file:
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(json_file, text + "\n")


def _check_arguments(
    model: str | None, fits: bool, save: bool, fit_on: str | None, bootstrap: int, batch_size: int, workers: int
) -> None:
    if (save or fit_on) and not fits:
        raise LabelwiseError(
            f"{'--save' if save else '--fit-on'} needs something to fit: add --fit-thresholds f1 or --fit-temperature"
        )
    if save and model is None:
        raise LabelwiseError(
            "--save changes a model of yours: name it. The tagger that comes with labelwise stays as it is"
        )
    if save and model and not Path(model).exists():
        raise LabelwiseError(f"--save needs a model on this machine; {model!r} is no folder")
    for name, value, least in (("bootstrap", bootstrap, 0), ("batch-size", batch_size, 1), ("workers", workers, 0)):
        if value < least:
            raise LabelwiseError(f"--{name} {value}: give a number of {least} or more")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise LabelwiseError(f"--scales {text!r}: write numbers with commas between them, as in 0.8,1.0,1.2") from None


def _show(result: dict[str, Any]) -> None:
    from labelwise.evaluation.tables import headline, headline_table, label_table, notes

    say(headline(result))
    for table in (label_table(result), headline_table(result)):
        Console(highlight=False).print(table)
    for note in notes(result):
        say(note)


def _note(text: str) -> None:
    say(text, stderr=True)


def _warn(text: str) -> None:
    say(f"warning: {text}", stderr=True)


def unseen_of(given: str | None, model: str, table: LabelTable) -> tuple[str, ...]:
    """The unseen labels that the user names, else those of the run's recipe; none of them, for most runs."""
    if given is not None:
        if given == "none":
            return ()
        return unseen_labels(table, FROM_DATA if given == FROM_DATA else label_list(given))
    run = find_run(model)
    if run is None:
        return ()
    wanted = load_recipe(run / RECIPE).data.unseen or ()
    # Other data than the run's may have none of them.
    return unseen_labels(table, wanted if wanted == FROM_DATA else [n for n in wanted if n in table.labels])
