"""The models that a worker holds, and what they answer: one JSON text per image.

Exported models are served without PyTorch: it is imported where a model in memory needs it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.arrays import Doubles, Floats
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.data.labels import unknown_label
from labelwise.engines.load import full_config, load, require_network
from labelwise.runtime.exported import ATTENTION, EXPORTS, GATES, ExportedModel
from labelwise.runtime.folder import CONFIG, PYTORCH, WEIGHTS, find_folder
from labelwise.runtime.prediction import Evidence, Prediction, probabilities
from labelwise.runtime.sessions import IMAGES_AT_ONCE, stream_count
from labelwise.runtime.tagger import Tagger
from labelwise.server.settings import MOST_MAPS, ServeSettings

if TYPE_CHECKING:
    from labelwise.model.model import LabelModel

_RELABELLED = 16  # relabelled models that are kept; they share all weights but the word vectors
_MANY = 1_000_000  # images to come: enough for measuring the engines to pay
_DIGITS = 6


class ModelStore:
    """The models by name, and copies of them with other labels.

    Args:
        settings: Which models to load, and how.
        say: Told in one line which engine was chosen.
    """

    def __init__(self, settings: ServeSettings, say: Callable[[str], None]) -> None:
        folders = {model.name: find_folder(model.source) for model in settings.models}
        self._fingerprints = {name: fingerprint(folder) for name, folder in folders.items()}
        self._models = {name: _open(folder, settings, say) for name, folder in folders.items()}
        changed = next(
            (name for name, folder in folders.items() if fingerprint(folder) != self._fingerprints[name]), None
        )
        if changed is not None:
            raise LabelwiseError(f"the files of the model {changed!r} changed while it was loaded; start again")
        self._relabelled: OrderedDict[tuple[str, tuple[str, ...]], Tagger] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str, labels: Sequence[str] | None) -> Tagger:
        """The model of this name, or a copy of it with these labels. Thread-safe."""
        original = self._models[name]
        if labels is None:
            return original
        if isinstance(original.model, ExportedModel):
            raise LabelwiseError(f"the labels of the model {name!r} are fixed, because it is exported")
        key = (name, tuple(labels))
        with self._lock:
            if key not in self._relabelled:
                self._relabelled[key] = Tagger(require_network(original.model).with_labels(labels).eval())
                if len(self._relabelled) > _RELABELLED:
                    self._relabelled.popitem(last=False)
            self._relabelled.move_to_end(key)
            return self._relabelled[key]

    def describe(self) -> list[dict[str, Any]]:
        """What GET /models says of each."""
        return [
            {"name": name, "default": number == 0, "fingerprint": self._fingerprints[name], **_describe(tagger)}
            for number, (name, tagger) in enumerate(self._models.items())
        ]


def _open(folder: Path, settings: ServeSettings, say: Callable[[str], None]) -> Tagger:
    tagger = load(folder, engine=settings.engine, images=_MANY, batch_size=settings.batch_size, say=say)
    size = tagger.config.preprocessing.size
    for images in (1, IMAGES_AT_ONCE * stream_count()):  # the first image and the first batch allocate and compile
        tagger.logits(np.zeros((images, 3, size, size), np.float32))
    if not (isinstance(tagger.model, ExportedModel) or full_config(tagger.model).head.has_attention):
        import labelwise.analysis.maps  # noqa: F401  (Grad-CAM; takes seconds: the first /explain should not wait)
    return tagger


def fingerprint(folder: Path) -> str:
    """A digest of a model's files: by the time that a worker is replaced, they may be another model's."""
    names = (CONFIG, WEIGHTS, *EXPORTS)
    files = [part / name for part in (folder, folder / PYTORCH) for name in names if (part / name).is_file()]
    return sha256(*(part for file in files for part in (f"{file.name} {file.stat().st_size}\n", file))).hexdigest()[:32]


def _describe(tagger: Tagger) -> dict[str, Any]:
    preprocessing = tagger.config.preprocessing
    content: dict[str, Any] = {
        "task": tagger.config.task,
        "labels": list(tagger.labels),
        "thresholds": {label: round(threshold, 6) for label, threshold in tagger.thresholds.items()},
        "engine": tagger.family,
        "known": tagger.model.takes_known and tagger.config.task == "multi-label",
        "size": preprocessing.size,
        "resize": preprocessing.resize,
        "crop_ratio": preprocessing.crop_ratio,
    }
    if isinstance(tagger.model, ExportedModel):
        outputs = tagger.model.about.outputs
        known = {"explain": ATTENTION in outputs, "attention": ATTENTION in outputs, "experts": GATES in outputs}
        return content | {"words": False, **known}
    config = require_network(tagger.model).config
    return content | {
        "words": config.head.takes_new_labels and config.words is not None,
        "explain": True,
        "attention": config.head.has_attention,
        "experts": config.head.expert_counts is not None,
    }


def predicted(tagger: Tagger, scores: Doubles, options: dict[str, Any]) -> bytes:
    """One entry of /predict's `predictions`, from the scores [N]."""
    prediction = Prediction(tagger.config, options["image"] or "", scores)
    chosen = prediction.choose(options["top"], options["threshold"])
    content: dict[str, Any] = {"image": options["image"], "labels": _rounded(chosen)}
    if options["all_scores"]:
        content["all_scores"] = _rounded(prediction.all_scores)
    return _json(content)


def explained(tagger: Tagger, image: Floats, known: Floats | None, options: dict[str, Any]) -> bytes:
    """The whole answer of /explain for an input [3, size, size]; `known` is of `Tagger.known_labels`, [N]."""
    name = options["model"]
    evidence = tagger.model.evidence(image[None], None if known is None else known[None])
    scores = probabilities(evidence.logits, tagger.config)[0]
    prediction = Prediction(tagger.config, "", scores if known is None else np.where(known < 0, scores, known))
    shown = _shown(prediction, options["maps"])
    columns = [tagger.labels.index(label) for label in shown]
    maps = evidence.maps()
    if maps is not None:
        kind, chosen = "attention", maps[0][evidence.label_query[columns]]  # [n, H, W]
    elif isinstance(tagger.model, ExportedModel):
        raise LabelwiseError(f"the model {name!r} was exported without maps: it cannot explain")
    else:
        kind, chosen = "grad-cam", _grad_cam(require_network(tagger.model), image, columns, known)
    return _json(
        {
            "model": name,
            "labels": _rounded(prediction.all_scores),
            "maps": dict(zip(shown, _lists(chosen), strict=True)),
            "kind": kind,
            "experts": _experts(tagger, evidence),
        }
    )


def _grad_cam(model: LabelModel, image: Floats, columns: list[int], known: Floats | None) -> Floats:
    """Maps [n, H, W] for a head without attention."""
    import torch

    from labelwise.analysis.maps import label_maps

    inputs = torch.from_numpy(image)[None].to(next(model.parameters()).device)  # [1, 3, size, size]
    told = None if known is None else torch.from_numpy(known)[None].to(inputs)
    maps = label_maps(model, inputs, torch.tensor([columns], device=inputs.device), method="grad-cam", known=told)
    found: Floats = maps[0].float().cpu().numpy()
    return found


def _shown(prediction: Prediction, wanted: list[str] | None) -> list[str]:
    """The labels whose maps are asked for; else those that apply, or the best one."""
    if wanted is None:
        return (prediction.labels or list(prediction.all_scores)[:1])[:MOST_MAPS]
    unknown = next((label for label in wanted if label not in prediction.all_scores), None)
    if unknown is not None:
        raise unknown_label(unknown, list(prediction.all_scores))
    return wanted


def _experts(tagger: Tagger, evidence: Evidence) -> dict[str, Any] | None:
    """The gates of the last expert layer on this image, label by label."""
    counts = full_config(tagger.model).head.expert_counts
    if counts is None or evidence.gates is None:
        return None
    own, shared = counts
    weights = evidence.gates[0, -1][evidence.label_query]  # [N, n_t + n_s], task experts first
    names = ["own"] if own == 1 else [f"own {number}" for number in range(own)]
    return {
        "names": [*names, *(f"shared {number}" for number in range(shared))],
        "weights": dict(zip(tagger.labels, _lists(weights), strict=True)),
    }


def _rounded(scores: dict[str, float]) -> dict[str, float]:
    return {label: round(score, _DIGITS) for label, score in scores.items()}


def _lists(values: Floats) -> list[Any]:
    """Nested lists of rounded numbers: a float32 in full would be three times as long in JSON."""
    rounded: list[Any] = values.astype(np.float64).round(_DIGITS).tolist()
    return rounded


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
