"""`labelwise evaluate`: how good a model is on a dataset, how sure that is, and thresholds that fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from labelwise.cli.say import say
from labelwise.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.data.table import LabelTable


def evaluate(
    model: str,
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
        A run folder, a model folder, an exported model or a hub id.
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
    import torch

    from labelwise.cli.zero_shot import show_zero_shot, unseen_of
    from labelwise.data.open import open_data
    from labelwise.data.run_split import with_splits_of_run
    from labelwise.engines.choose import open_engine
    from labelwise.evaluation import evaluate as measure
    from labelwise.evaluation import fit_config, match_labels, predict_logits
    from labelwise.evaluation.inference import InferenceOptions, Predictions
    from labelwise.evaluation.thresholds import parse_rule
    from labelwise.evaluation.zero_shot import evaluate_zero_shot, seen_and_unseen
    from labelwise.export.folder import find_export
    from labelwise.export.model import ExportedModel
    from labelwise.features import FeatureCache
    from labelwise.model import LabelModel, load_model

    fits = fit_thresholds is not None or fit_temperature
    _check_arguments(model, fits, save, fit_on, bootstrap, batch_size, workers)
    if fit_thresholds is not None:
        parse_rule(fit_thresholds)  # a typing error should not cost a pass over the images
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    views = _numbers(scales)
    if cache and views != [1]:
        raise LabelwiseError("cached features are of one input size; leave out --scales or --cache")
    exported = find_export(model)
    if exported is not None and (save or cache or unseen or views != [1]):
        raise LabelwiseError("--save, --cache, --unseen and --scales need the model itself, not an exported one")
    network: LabelModel | ExportedModel
    if exported is None:
        network = load_model(model).to("cuda" if torch.cuda.is_available() else "cpu")
    else:
        network = ExportedModel(exported, engine)
    whole = with_splits_of_run(open_data(data), Path(model), Path(model).parent)
    table, fit_table = _select(whole, split), _select(whole, fit_on or split)
    hidden = unseen_of(unseen, model, whole) if exported is None else ()
    if hidden and fits:
        raise LabelwiseError("thresholds and a temperature are fitted for seen labels alone: add --unseen none")
    # Before the work, not after it.
    labels = seen_and_unseen(network, hidden) if isinstance(network, LabelModel) else network.labels
    match_labels(table, labels, ignore_extra=ignore_extra_labels)
    if isinstance(network, ExportedModel):
        runner = network.engine
    elif cache:
        runner = None  # the engine computes features; the head runs in torch
    elif hidden or views != [1]:
        if engine not in ("auto", "torch"):
            raise LabelwiseError(f"--engine {engine} runs a model as it is: not with --scales or --unseen; use torch")
        runner = None
    else:
        work = len(table) * (2 if flip else 1)
        size = network.config.preprocessing.size
        runner = open_engine(engine, network, size=size, images=work, batch_size=batch_size, say=_note)

    def inference(images: LabelTable) -> InferenceOptions:
        features = None
        if cache:
            assert isinstance(network, LabelModel)
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

    def predict(images: LabelTable) -> Predictions:
        return predict_logits(network, images, **inference(images))

    if hidden:
        assert isinstance(network, LabelModel)
        zero_shot = evaluate_zero_shot(
            network,
            table,
            hidden,
            bootstrap=bootstrap,
            ignore_extra_labels=ignore_extra_labels,
            **inference(table),
        ).as_dict()
        zero_shot["model"] = {"source": model, **zero_shot["model"]}
        zero_shot["data"] |= {"split": split}
        zero_shot["test_time"] = {"flip": flip, "scales": views}
        _write(zero_shot, json_file)
        show_zero_shot(zero_shot)
        return
    predictions = predict(table)
    fitted: dict[str, Any] = {}
    if fits:
        fit_predictions = predictions if fit_on in (None, split) else predict(fit_table)
        targets = match_labels(fit_table, network.labels, ignore_extra=True).targets(fit_predictions.rows)
        fit = fit_config(
            network.config, fit_predictions.logits, targets, thresholds=fit_thresholds, temperature=fit_temperature
        )
        network.config = fit.config
        fitted = {
            "on": fit_on or split,
            "thresholds": fit_thresholds,
            "temperature": fit_temperature,
            "labels_by_fallback": list(fit.fallback_labels),
        }
        shared = len(set(table.images) & set(fit_table.images))
        if shared:
            _warn(f"{shared:,} images are both fitted and measured on: these numbers are optimistic; see --fit-on")
        if fit.fallback_labels:
            _warn(f"{len(fit.fallback_labels)} labels got the others' median threshold: {_few(fit.fallback_labels)}")
    evaluation = measure(
        network, table, predictions=predictions, bootstrap=bootstrap, ignore_extra_labels=ignore_extra_labels
    )
    result = evaluation.as_dict()
    result["model"] = {"source": model, **result["model"]}
    result["data"] |= {"split": split}
    result |= {"test_time": {"flip": flip, "scales": views}, "fitted": fitted or None}
    # First what is kept, then what is shown: `labelwise evaluate … | head` ends the showing early.
    _write(result, json_file)
    if save:
        from labelwise.model_folder import find_folder

        assert isinstance(network, LabelModel)
        folder = find_folder(model)
        network.save(folder)
    _show(result)
    if save:
        say(f"{folder}: saved what was fitted on {fitted['on']}")


def _write(result: dict[str, Any], json_file: Path | None) -> None:
    if json_file:
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
        json_file.write_text(text + "\n", encoding="utf-8")


def _check_arguments(
    model: str, fits: bool, save: bool, fit_on: str | None, bootstrap: int, batch_size: int, workers: int
) -> None:
    if (save or fit_on) and not fits:
        raise LabelwiseError(
            f"{'--save' if save else '--fit-on'} needs something to fit: add --fit-thresholds f1 or --fit-temperature"
        )
    if save and not Path(model).exists():
        raise LabelwiseError(f"--save needs a model on this machine; {model!r} is no folder")
    for name, value, least in (("bootstrap", bootstrap, 0), ("batch-size", batch_size, 1), ("workers", workers, 0)):
        if value < least:
            raise LabelwiseError(f"--{name} {value}: give a number of {least} or more")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise LabelwiseError(f"--scales {text!r}: write numbers with commas between them, as in 0.8,1.0,1.2") from None


def _select(table: LabelTable, split: str) -> LabelTable:
    return table if split == "all" and "all" not in table.split_names else table.select(split)


def _show(result: dict[str, Any]) -> None:
    from labelwise.evaluation.tables import headline_table, label_table, notes

    data = result["data"]
    say(
        f"{result['model']['source']} on {data['source']} ({data['split']}): "
        f"{result['images']:,} images, {result['labels']:,} labels"
    )
    for table in (label_table(result), headline_table(result)):
        Console(highlight=False).print(table)
    for note in notes(result):
        say(note)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _note(text: str) -> None:
    say(text, stderr=True)


def _warn(text: str) -> None:
    say(f"warning: {text}", stderr=True)
