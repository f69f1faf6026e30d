"""The card of a model: a README.md for people, with metadata for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from labelwise.core.errors import LabelwiseError
from labelwise.model.config import ModelConfig

_RANKING = ("mAP", "accuracy_top1", "accuracy_top5")  # do not depend on thresholds
_AT_THRESHOLDS = ("CF1", "OF1", "CP", "CR", "OP", "OR")
_LABELS_SHOWN = 1000


@dataclass(frozen=True)
class Measured:
    """Metrics in percent of a model on one split of a dataset."""

    data: str
    split: str
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, of some metrics
    images: int | None = None
    label_ap: dict[str, float | None] = field(default_factory=dict)
    chosen_on: bool = False  # the best epoch and the thresholds were chosen on these images


def in_training(config: ModelConfig) -> Measured | None:
    """What training measured on its validation images, at the best epoch."""
    results = config.results
    names = _RANKING if config.thresholds is not None else _RANKING + _AT_THRESHOLDS  # it measured at 0.5
    metrics = {name: float(results[name]) for name in names if results.get(name) is not None}
    if not metrics:
        return None
    return Measured(public_source(results.get("data")), str(results.get("split")), metrics, chosen_on=True)


def in_evaluation(result: Any, config: ModelConfig, file: str) -> Measured:
    """An evaluation that was saved as JSON; an error if it is of a model with other labels."""
    try:
        rows = {row["label"]: row for row in result["per_label"]}
        if set(rows) != set(config.labels):
            raise LabelwiseError(f"{file!r} measured other labels than the model's; evaluate this model again")
        thresholds = zip(config.labels, config.label_thresholds, strict=True)
        same = all(abs(rows[label]["threshold"] - threshold) < 1e-6 for label, threshold in thresholds)
        names = _RANKING + _AT_THRESHOLDS if same else _RANKING  # others were only tried out
        intervals = {name: tuple(result["confidence"][name]) for name in names if name in result["confidence"]}
        return Measured(
            public_source(result["data"]["source"]),
            result["data"]["split"],
            {name: result[name] for name in names if result.get(name) is not None},
            intervals,
            result["images"],
            {label: row["AP"] for label, row in rows.items()},
        )
    except (KeyError, TypeError, AttributeError):
        raise LabelwiseError(f"{file!r} is not a saved evaluation; write one with evaluate") from None


def public_source(source: object) -> str:
    """The name of a dataset without its folders, which are private.

    >>> public_source("voc:/home/ann/VOCdevkit"), public_source("/home/ann/photos.csv?x=1"), public_source(None)
    ('voc:VOCdevkit', 'photos.csv', 'unnamed data')
    """
    if not source:
        return "unnamed data"
    head, colon, rest = str(source).partition("?")[0].partition(":")
    path = rest if colon and rest else head
    name = PurePath(path.replace("\\", "/")).name or "unnamed data"
    return f"{head}:{name}" if colon and rest and "/" not in head and len(head) > 1 else name


def model_card(
    config: ModelConfig,
    *,
    name: str | None = None,
    license: str | None = None,
    training: dict[str, Any] | None = None,
    measured: Sequence[Measured] = (),
) -> str:
    """Write the card of a model.

    Args:
        config: The model's config.
        name: Its hub id.
        license: Its license.
        training: Its recipe as plain values.
        measured: Its evaluations.
    """
    all_measured = [*measured, *filter(None, [in_training(config)])]
    parts = [
        f"# {name.rpartition('/')[2] if name else config.backbone.name}",
        _introduction(config),
        "## Usage\n" + _use(config, name or "FOLDER"),
        *(["## Accuracy\n" + _metrics(all_measured)] if all_measured else []),
        "## Labels and thresholds\n" + _labels(config, all_measured),
        *(["## Training\n" + _training(config, training)] if training else []),
        "## Input\n" + _input(config),
        "## License\n" + (f"`{license}`" if license else "Not stated: ask the owner before you use the model."),
    ]
    return f"---\n{_metadata(config, name, license, all_measured)}\n---\n" + "\n\n".join(parts) + "\n"


def _metadata(config: ModelConfig, name: str | None, license: str | None, measured: Sequence[Measured]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="image-classification",
            task_name=f"{config.task} image classification",
            dataset_type=one.data.partition(":")[0] if ":" in one.data else "images",
            dataset_name=one.data,
            dataset_split=one.split,
            metric_type=metric,
            metric_name=f"{metric} (percent)",
            metric_value=round(value, 3),
        )
        for one in measured
        for metric, value in one.metrics.items()
    ]
    data = ModelCardData(
        library_name="labelwise",
        pipeline_tag="image-classification",
        tags=["labelwise", config.task, "timm"],
        license=license,
        model_name=name or config.backbone.name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml(original_order=["license", "library_name", "pipeline_tag", "tags"])


def _introduction(config: ModelConfig) -> str:
    says = (
        "every label that applies to an image" if config.task == "multi-label" else "the one label that fits an image"
    )
    looks = ", with a score and a map of where it looked" if config.head.has_attention else ", with a score"
    return f"Names {says}, out of {len(config.labels):,}{looks}. A labelwise head on `{config.backbone.name}` (timm)."


def _use(config: ModelConfig, name: str) -> str:
    looks = (
        f"\n    prediction.attention({json.dumps(config.labels[0], ensure_ascii=False)})  # [H, W]: where it looked"
        if config.head.has_attention
        else ""
    )
    return f"""```python
import labelwise as lw

tagger = lw.load("{name}")
for prediction in tagger.predict(["photo.jpg"]):
    print(prediction.labels, prediction.scores){looks}
```

```sh
labelwise predict {name} photo.jpg
labelwise serve {name}
```

Loading runs no code from this repository: the weights are safetensors, the rest is JSON."""


def _metrics(measured: Sequence[Measured]) -> str:
    names = [name for name in _RANKING + _AT_THRESHOLDS if any(name in one.metrics for one in measured)]
    lines = [_row(["data", "split", "images", *names]), _row(["---"] * (3 + len(names)))]
    for one in measured:
        cells = [_number(one, name) for name in names]
        images = "" if one.images is None else f"{one.images:,}"
        lines.append(_row([f"{_text(one.data)}", _text(one.split) + (" ¹" if one.chosen_on else ""), images, *cells]))
    notes = ["Percent" + ("; brackets are 95 % confidence intervals." if any(o.intervals for o in measured) else ".")]
    if any(one.chosen_on for one in measured):
        notes.append("¹ Measured during training on the images that the best epoch was chosen on: slightly optimistic.")
    return "\n".join(lines) + "\n\n" + "\n".join(notes)


def _number(one: Measured, name: str) -> str:
    if name not in one.metrics:
        return ""
    low_high = one.intervals.get(name)
    interval = f" [{low_high[0]:.1f}, {low_high[1]:.1f}]" if low_high else ""
    return f"{one.metrics[name]:.1f}{interval}"


def _labels(config: ModelConfig, measured: Sequence[Measured]) -> str:
    by_label = next((one for one in measured if one.label_ap), None)
    single = config.task == "single-label"
    columns = ["label", *([] if single else ["threshold"]), *([f"AP on {by_label.split}"] if by_label else [])]
    thresholds = config.label_thresholds
    lines = [_row(columns), _row(["---"] * len(columns))]
    for label, threshold in list(zip(config.labels, thresholds, strict=True))[:_LABELS_SHOWN]:
        ap = by_label.label_ap.get(label) if by_label else None
        cells = [_text(label), *([] if single else [f"{threshold:.3f}"])]
        lines.append(_row([*cells, *(["" if ap is None else f"{ap:.1f}"] if by_label else [])]))
    if single:
        says = "The label with the highest score is predicted."
    else:
        says = "A label applies if its score reaches its threshold" + (
            ", fitted on validation images." if config.thresholds else ". None was fitted: 0.5 for all."
        )
    if len(config.labels) > _LABELS_SHOWN:
        says += f" The first {_LABELS_SHOWN:,} of {len(config.labels):,} are shown; `config.json` has all."
    return f"{says}\n\n" + "\n".join(lines)


def _training(config: ModelConfig, recipe: dict[str, Any]) -> str:
    data, model, optimizer = recipe["data"], recipe["model"], recipe["optimizer"]
    kinds = {
        "backbone": "frozen",
        "early": "its last layers trained",
        "stem": "trained but for its stem and first stage",
        "stem+norms": "trained but for its stem, first stage and norms",
    }
    frozen = kinds.get(model["freeze"], "trained")
    start = f"\n- Started from: {_text(public_source(model['start']))}" if model.get("start") else ""
    options = "".join(f", {_text(f'{key} {value}')}" for key, value in model["options"].items())
    return f"""- Data: {_text(public_source(data["source"]))}, split {_text(data["train"])}
- Backbone: `{model["backbone"]}`, {frozen}{start}
- Head: `{model["head"]}`{options}
- Loss: `{recipe["loss"]["name"]}`
- Optimizer: {optimizer["name"]}, learning rate {optimizer["lr"]:g}, {recipe["schedule"]["name"]} schedule
- Epochs: {recipe["epochs"]}, batches of {recipe["batch_size"]}, seed {recipe["seed"]}
- Calibration of the scores: temperature {config.temperature:.3f}, offset {config.offset:.3f}"""


def _input(config: ModelConfig) -> str:
    expects = config.preprocessing
    ways = {
        "squash": "the whole image, both sides resized",
        "crop": f"the centre, after the shorter side was resized to {expects.shorter_side}",
        "pad": "the whole image, padded with grey",
    }
    return (
        f"RGB, {expects.size} x {expects.size} pixels: {ways[expects.resize]} ({expects.interpolation}); scaled to "
        f"0..1, minus mean {expects.mean}, divided by {expects.std}. labelwise does this itself."
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(text: str) -> str:
    """Escape a name for a Markdown table.

    >>> _text("a|b\\n<i>*x*")
    'a&#124;b &lt;i&gt;\\\\*x\\\\*'
    """
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain.replace("|", "&#124;")
