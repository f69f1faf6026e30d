"""`lw.evaluate` and `lw.report`: how good models are, as numbers and as a page."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.api.inputs import check_reader_options, model_name, model_path, open_any_table, require, require_choice
from labelwise.core.arrays import Floats, Targets
from labelwise.core.errors import LabelwiseError, counted, shortened, torch_needed
from labelwise.data.images import OnBadImage
from labelwise.data.labels import FROM_DATA, label_list, match_labels, unseen_labels
from labelwise.data.sources import with_options
from labelwise.data.stream_table import AnyTable
from labelwise.engines.load import full_config, open_model, read_labels, zero_shot_model
from labelwise.runtime.exported import ExportedModel
from labelwise.runtime.folder import WEIGHTS, find_folder, network_folder
from labelwise.runtime.sessions import EngineName
from labelwise.runtime.tagger import Tagger
from labelwise.training.recipe import Recipe, own_data, run_recipe
from labelwise.training.run import Run, find_run
from labelwise.words.config import tower_words

if TYPE_CHECKING:
    from labelwise.api.inputs import Data
    from labelwise.evaluation.evaluate import Evaluation
    from labelwise.evaluation.zero_shot import ZeroShotEvaluation
    from labelwise.model.config import ModelConfig
    from labelwise.model.model import LabelModel


def evaluate(
    model: str | Path | Run | LabelModel | ExportedModel | Tagger | None = None,
    data: Data | None = None,
    *,
    split: str | None = None,
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    fit_thresholds: str | None = None,
    fit_temperature: bool = False,
    fit_on: str | None = None,
    save: bool = False,
    unseen: str | Sequence[str] | None = None,
    conventions: Sequence[str] = (),
    bootstrap: int = 1000,
    on_bad_image: OnBadImage = "error",
    ignore_extra_labels: bool = False,
    batch_size: int = 32,
    workers: int = 0,
    cache: bool = False,
    engine: EngineName = "auto",
    progress: bool = True,
    warn: Callable[[str], None] = warnings.warn,
    say: Callable[[str], None] | None = None,
    **reader: Any,
) -> Evaluation | ZeroShotEvaluation:
    """Measure a model on a dataset: every metric with a confidence interval, and all labels one by one.

    Args:
        model: A run, a model folder, an exported model, a hub id or a model in memory. Default: the bundled tagger.
            An open_clip model (`clip:…`) is measured untrained, on the data's labels in words.
        data: A dataset: a path, `format:path`, shards, a DataFrame or a table. Default: the data of the training.
        split: The images to measure on: a split, several (`train+val`), or `all`. Default: `test`. If the data
            has no splits, those of the run's `split.csv`; without that, all images.
        flip: Average over each image and its mirror image.
        scales: Average over these multiples of the model's input size, e.g. `(0.8, 1.0, 1.2)`.
        fit_thresholds: Fit a threshold for each label: `auto`, `f1`, `precision=0.9` or `recall=0.8`.
        fit_temperature: Fit a temperature and an offset, so that scores are probabilities.
        fit_on: The split to fit on; preferably not the one you measure on. Default: that of `split`.
        save: Write what was fitted into the model. By default it is used for this evaluation only.
        unseen: Zero-shot: labels that the training did not see, as names or as a file with one per line. They are
            measured alone (ZSL) and with the seen ones (GZSL). Default: those of the run's recipe; `"none"` for none.
        conventions: Also compute the metrics with the conventions of these papers and benchmarks: `ml-gcn`,
            `query2label`, `ml-decoder`, `open-images`, `nus-wide-zsl`, `voc2007` or `labelwise`.
        bootstrap: Samples (random halves of the images) for the confidence intervals; 0 for none.
        on_bad_image: `skip` leaves out images that cannot be decoded, and lists them.
        ignore_extra_labels: Leave out labels of the data that the model does not have.
        batch_size: Images per batch.
        workers: Threads that decode images; 0: one per core.
        cache: Keep the backbone's features on disk, and use those that are there.
        engine: What runs the model. `auto`: the fastest one with the same logits, measured once if there are many
            images.
        progress: Show a progress bar.
        warn: Called with what limits the numbers.
        say: Called with one line about the engine that was chosen.
        **reader: Options of the data's reader: `image_column`, `label_column`, `separator`, `root` and others.

    Returns:
        An `Evaluation`; a `ZeroShotEvaluation` if there are unseen labels.

    Example:
        >>> import labelwise as lw
        >>> evaluation = lw.evaluate("runs/first", "photos.csv", split="test")  # doctest: +SKIP
        >>> evaluation.scores.mAP, evaluation.to_pandas().sort_values("AP")  # doctest: +SKIP
    """
    check_reader_options(reader, evaluate)
    fits = fit_thresholds is not None or fit_temperature
    if (save or fit_on) and not fits:
        raise LabelwiseError("say what to fit: thresholds or a temperature", options={"fit_thresholds": "f1"})
    require_choice(engine=(engine, EngineName), on_bad_image=(on_bad_image, OnBadImage))
    require(bootstrap=(bootstrap, 0), batch_size=(batch_size, 1), workers=(workers, 0))
    views = list(scales)
    if cache and views != [1]:
        raise LabelwiseError("cached features are of one input size; leave out the scales or the cache")
    target = _saved_to(model) if save else None
    # Mistakes in the model's name and in the data are told before PyTorch and the model are loaded.
    tower = model if isinstance(model, str) and tower_words(model) else None
    named = tower is None and (model is None or isinstance(model, str | os.PathLike))
    known_labels = read_labels(model_path(model)) if named else None  # type: ignore[arg-type]
    recipe = _recipe_of(model)
    if recipe is not None and recipe.data.labels is not None:  # the other labels of its data were left out on purpose
        ignore_extra_labels = True
    whole = open_any_table(_data(data, recipe), model, **reader)
    split = whole.chosen_split(split)
    table, fit_table = whole.part(split), whole.part(fit_on or split, "fit_on")
    if known_labels is not None and not _unseen(unseen, recipe, whole):
        match_labels(table, known_labels, ignore_extra=ignore_extra_labels)
    with torch_needed():
        from labelwise.evaluation.evaluate import measure
        from labelwise.evaluation.inference import engine_for, predict_logits
        from labelwise.evaluation.thresholds import parse_rule
        from labelwise.evaluation.zero_shot import evaluate_zero_shot, seen_and_unseen
        from labelwise.features import FeatureCache
        from labelwise.metrics import check_conventions
        from labelwise.model.model import LabelModel

    run = _run_of(model)
    if run is not None and run.learned_from(data, split, table):
        warn(f"the model has learned from images of {split}: these numbers are optimistic; measure on another split")
    check_conventions(conventions)
    if fit_thresholds is not None:
        parse_rule(fit_thresholds)  # a typing error should not cost a pass over the images
    network = _open(model, engine) if tower is None else zero_shot_model(tower, whole.labels)
    if isinstance(network, ExportedModel) and (save or cache or unseen or views != [1]):
        raise LabelwiseError(
            "an exported model has one input size and fixed labels; load the model that it was made from to save, to "
            "cache features, for other scales or for unseen labels"
        )
    hidden = _unseen(unseen, recipe, whole) if isinstance(network, LabelModel) else ()
    if hidden and fits:
        raise LabelwiseError("thresholds and a temperature are fitted for seen labels only", options={"unseen": "none"})
    if hidden and engine not in ("auto", "torch"):
        raise LabelwiseError(f"engine {engine} cannot run unseen labels", options={"engine": "torch"})
    config = full_config(network)
    if isinstance(model, Tagger):  # it may have been loaded with another threshold
        config = config.model_copy(update={"thresholds": tuple(model.thresholds.values())})
    # Before the work, not after it.
    labels = seen_and_unseen(network, hidden) if isinstance(network, LabelModel) else config.labels
    match_labels(table, labels, ignore_extra=ignore_extra_labels)
    runner = None
    if not (hidden or cache):  # with a cache, the engine computes the features
        images = len(table) * (2 if flip else 1)
        runner = engine_for(network, engine, images=images, batch_size=batch_size, scales=views, say=say)

    reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "on_bad_image": on_bad_image}

    def options(images: AnyTable) -> dict[str, Any]:
        features = None
        if cache and isinstance(network, LabelModel):
            source = (images, network.backbone, config.preprocessing)
            features = FeatureCache.build(*source, flips=flip, engine=engine, **reading)
        found = {"features": features, "engine": runner, "progress": progress}
        return {**reading, **found, "flip": flip, "scales": views}

    known: dict[str, Any] = {
        "bootstrap": bootstrap,
        "ignore_extra_labels": ignore_extra_labels,
        "conventions": conventions,
    }
    about: dict[str, Any] = {
        "model": model_name(model),
        "split": split,
        "test_time": {"flip": flip, "scales": views},
    }
    if hidden:
        assert isinstance(network, LabelModel)
        return replace(evaluate_zero_shot(network, table, hidden, **known, **options(table)), **about)
    logits = predict_logits(network, table, **options(table))
    if fits:
        known_logits = None if run is None else run.held_out(fit_table)  # from before it learned from these images
        if known_logits is not None and (flip or views != [1]):
            warn("what is fitted comes from single, plain views of the validation images: the others were not kept")
        if known_logits is None:
            used = logits if fit_on in (None, split) else predict_logits(network, fit_table, **options(fit_table))
            targets = match_labels(fit_table, config.labels, ignore_extra=True).targets(used.rows)
            known_logits = used.logits, targets
        config, about["fitted"] = _fit(config, *known_logits, fit_thresholds, fit_temperature, warn)
        about["fitted"] = {"on": fit_on or split, **about["fitted"]}
        if shared := len(set(table.images) & set(fit_table.images)):
            both = counted(shared, "image is", "images are")
            warn(f"{both} both fitted and measured on: these numbers are optimistic; fit on another split")
    evaluation = replace(measure(config, table, logits, **known), **about)
    if evaluation.too_many_labels:
        warn(evaluation.too_many_labels)
    if target is not None:
        assert isinstance(network, LabelModel)
        network.config = config
        network.save(target)
    return evaluation


def _fit(
    config: ModelConfig,
    logits: Floats,
    targets: Targets,
    thresholds: str | None,
    temperature: bool,
    warn: Callable[[str], None],
) -> tuple[ModelConfig, dict[str, Any]]:
    """The config with what was fitted on these logits and targets [M, N], and what the results say about it."""
    from labelwise.evaluation.thresholds import fit_config

    fit = fit_config(config, logits, targets, thresholds=thresholds, temperature=temperature)
    if fit.fallback_labels:
        several = counted(len(fit.fallback_labels), "label")
        told = (
            "too few images to judge {}"
            if thresholds == "auto"
            else "{} without enough examples use the median threshold"
        )
        warn(f"{told.format(several)}: {shortened(fit.fallback_labels)}")
    about = {"thresholds": thresholds, "temperature": temperature, "labels_by_fallback": list(fit.fallback_labels)}
    return fit.config, about


def _open(model: Any, engine: EngineName) -> LabelModel | ExportedModel:
    if isinstance(model, Tagger):
        model = model.model
    if model is not None and not isinstance(model, str | os.PathLike):
        in_memory: LabelModel | ExportedModel = model
        return in_memory
    return open_model(model_path(model), engine=engine)


def _run_of(model: Any) -> Run | None:
    """The run of a trained model; an export may lie in a run folder, too, but is none."""
    path = model_path(model) if isinstance(model, str | os.PathLike) else None
    if path is None or find_run(path) is None or not (network_folder(find_folder(path)) / WEIGHTS).is_file():
        return None
    return Run(path)


def _recipe_of(model: Any) -> Recipe | None:
    run = find_run(model_path(model)) if model is None or isinstance(model, str | os.PathLike) else None
    return None if run is None else run_recipe(run)


def _data(data: Data | None, recipe: Recipe | None) -> Data:
    if data is not None:
        return data
    source = None if recipe is None else own_data(recipe)
    if source is None:
        raise LabelwiseError("this model does not say what it was trained on; name the data", options={"data": ...})
    return source


def _saved_to(model: Any) -> Path:
    """The folder that takes what was fitted."""
    if model is None:
        raise LabelwiseError("the bundled tagger stays as it is; name a model of your own to save to")
    if not isinstance(model, str | os.PathLike) or not Path(model).exists():
        raise LabelwiseError(f"saving needs a model folder on this machine; {model_name(model)!r} is not one")
    return find_folder(model_path(model))


def _unseen(given: str | Sequence[str] | None, recipe: Recipe | None, table: AnyTable) -> tuple[str, ...]:
    """The unseen labels that the user names, else those of the run's recipe; for most runs there are none."""
    if given is not None:
        if given == "none":
            return ()
        if isinstance(given, str):
            return unseen_labels(table, FROM_DATA if given == FROM_DATA else label_list(given))
        return unseen_labels(table, list(given))
    wanted = () if recipe is None else recipe.data.unseen or ()
    # Other data than the run's may have none of them.
    return unseen_labels(table, wanted if wanted == FROM_DATA else [name for name in wanted if name in table.labels])


def report(
    runs: str | Path | Run | Sequence[str | Path | Run],
    *,
    out: str | Path = "report",
    data: str | Path | None = None,
    split: str | None = None,
    reference: str | None = None,
    pairs: Sequence[str | tuple[str, str]] = (),
    images: int = 12,
    predictions: int = 0,
    per_label_baseline: bool = False,
    bootstrap: int = 1000,
    batch_size: int = 32,
    workers: int = 0,
    progress: bool = True,
    warn: Callable[[str], None] = warnings.warn,
    **reader: Any,
) -> Path:
    """Write one HTML page about a run, or a comparison of several, with JSON and CSV files beside it.

    Predictions are computed once and kept in the run folders, so the next report of the same run takes seconds.

    Args:
        runs: Runs, model folders or hub ids; several are compared on the same images.
        out: Folder for `report.html` and the files beside it.
        data: The dataset to measure on. Default: the data of the runs' recipe.
        split: The images to measure on: a split, several (`train+val`), or `all`. Default: `test`, `val`, or all.
        reference: The run that the others are compared with, by its name on the page. Default: the first one.
        pairs: Pairs of related labels to compare across the runs, e.g. `[("cow", "horse")]`.
        images: How many of the worst mistakes of each kind to show.
        predictions: How many images to show with their predictions and attention maps.
        per_label_baseline: Also fit one model per label on the same frozen features, to find negative transfer.
        bootstrap: Samples (random halves of the images) for intervals and comparisons.
        batch_size: Images per batch.
        workers: Threads that decode images; 0: one per core.
        progress: Show a progress bar.
        warn: Called with what limits the numbers, e.g. images that a run was trained on.
        **reader: Options of the data's reader: `image_column`, `label_column`, `separator`, `root` and others.

    Returns:
        The page.

    Example:
        >>> import labelwise as lw
        >>> lw.report(["runs/q2l", "runs/hsq"], out="compare")  # doctest: +SKIP
        PosixPath('compare/report.html')
    """
    options = {key: value for key, value in locals().items() if key not in ("runs", "out", "reader")}
    require(bootstrap=(bootstrap, 0), images=(images, 0), batch_size=(batch_size, 1), workers=(workers, 0))
    require(predictions=(predictions, 0))
    check_reader_options(reader, report)
    if reader and data is None:
        raise LabelwiseError("these options are for reading data; name it, too", options={"data": "photos.csv"})
    with torch_needed():
        from labelwise.reports.page import ReportOptions, runs_report

    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    options["data"] = None if data is None else with_options(data, reader)
    options["pairs"] = [pair if isinstance(pair, str) else ",".join(pair) for pair in pairs]
    return runs_report([model_path(run) for run in several], out, ReportOptions(**options))
