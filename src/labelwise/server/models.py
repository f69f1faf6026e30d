"""The models that a worker holds, and the same ones with other labels."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.arrays import Doubles, Floats
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.preprocessing import InputTransform
from labelwise.engines.load import load, require_network
from labelwise.runtime.exported import find_export
from labelwise.runtime.prediction import Prediction, probabilities
from labelwise.runtime.tagger import Tagger
from labelwise.server.settings import MOST_MAPS, ModelSource, ServeSettings

if TYPE_CHECKING:
    from labelwise.heads.base import HeadDetails
    from labelwise.model.model import LabelModel

_RELABELLED = 16  # models with other labels that are kept; they share all weights but the words
_MANY = 1_000_000  # pictures to come, for the choice of an engine: measuring it pays


class Served:
    """A tagger and what turns pictures into its inputs."""

    def __init__(self, tagger: Tagger, model: LabelModel | None) -> None:
        self.tagger, self.model = tagger, model  # an exported model has no inside to look at
        self.transform = InputTransform(tagger.config.preprocessing)

    def warm_up(self) -> Served:
        """The first run of an engine allocates and compiles: nobody should wait for that."""
        size = self.tagger.config.preprocessing.size
        self.tagger.logits(np.zeros((1, 3, size, size), np.float32))
        return self


class Library:
    def __init__(self, settings: ServeSettings, say: Callable[[str], None]) -> None:
        self._served = {model.name: _open(model, settings, say) for model in settings.models}
        self._relabelled: OrderedDict[tuple[str, tuple[str, ...]], Served] = OrderedDict()
        self._lock = Lock()

    def served(self, name: str, labels: Sequence[str] | None) -> Served:
        """The model of this name, or a sister of it with these labels; several threads may ask."""
        original = self._served[name]
        if labels is None:
            return original
        if original.model is None:
            raise LabelwiseError(f"the labels of the model {name!r} are fixed: it is an exported one")
        key = (name, tuple(labels))
        with self._lock:
            if key not in self._relabelled:
                model = original.model.with_labels(labels).eval()
                self._relabelled[key] = Served(Tagger(model), model)
                if len(self._relabelled) > _RELABELLED:
                    self._relabelled.popitem(last=False)
            self._relabelled.move_to_end(key)
            return self._relabelled[key]

    def describe(self) -> list[dict[str, Any]]:
        """What GET /models says of each."""
        return [
            {"name": name, "default": number == 0, **_describe(served)}
            for number, (name, served) in enumerate(self._served.items())
        ]


def _open(model: ModelSource, settings: ServeSettings, say: Callable[[str], None]) -> Served:
    if find_export(model.source) is None:
        tagger = load(model.source, engine=settings.engine, images=_MANY, batch_size=settings.batch_size, say=say)
        return Served(tagger, require_network(tagger.model)).warm_up()
    return Served(load(model.source, engine=settings.engine), None).warm_up()


def _describe(served: Served) -> dict[str, Any]:
    tagger = served.tagger
    picture = tagger.config.preprocessing
    content: dict[str, Any] = {
        "task": tagger.config.task,
        "labels": list(tagger.labels),
        "thresholds": {label: round(threshold, 6) for label, threshold in tagger.thresholds.items()},
        "engine": tagger.family,
        "size": picture.size,
        "resize": picture.resize,
        "crop_ratio": picture.crop_ratio,
    }
    return content | _abilities(served.model)


def _abilities(model: LabelModel | None) -> dict[str, bool]:
    if model is None:
        return {"words": False, "explain": False, "attention": False, "experts": False}
    from labelwise.analysis.experts import shared_experts
    from labelwise.analysis.maps import natural_method

    return {
        "words": model.config.head.takes_new_labels and model.config.words is not None,
        "explain": True,
        "attention": natural_method(model) == "attention",
        "experts": shared_experts(model.config) is not None,
    }


_DIGITS = 6


def predicted(tagger: Tagger, scores: Doubles, options: dict[str, Any]) -> bytes:
    """One entry of /predict's `predictions`, from the scores [N]."""
    prediction = Prediction(tagger.config, options["image"] or "", scores)
    chosen = prediction.choose(options["top"], options["threshold"])
    content: dict[str, Any] = {"image": options["image"], "labels": _rounded(chosen)}
    if options["all_scores"]:
        content["all_scores"] = _rounded(prediction.all_scores)
    return _json(content)


def explained(name: str, served: Served, image: Floats, options: dict[str, Any]) -> bytes:
    """The whole answer of /explain for an input [3, size, size]."""
    import torch

    from labelwise.analysis.maps import label_maps, natural_method

    model, labels = served.model, served.tagger.labels
    if model is None:
        raise LabelwiseError(f"the model {name!r} is an exported one: it predicts, and shows nothing of its inside")
    inputs = torch.from_numpy(image)[None].to(next(model.parameters()).device)  # [1, 3, size, size]
    with torch.inference_mode():
        details = model.details(inputs)
    scores = probabilities(details.logits.float().cpu().numpy(), model.config)[0]  # [N]
    prediction = Prediction(served.tagger.config, "", scores)
    shown = _shown(prediction, options["maps"])
    method = natural_method(model)
    if method == "attention":
        maps = details.label_attention[0][[labels.index(label) for label in shown]]  # [n, H, W]
    else:
        numbers = torch.tensor([[labels.index(label) for label in shown]], device=inputs.device)
        maps = label_maps(model, inputs, numbers, method=method)[0]
    return _json(
        {
            "model": name,
            "labels": _rounded(prediction.all_scores),
            "maps": dict(zip(shown, _lists(maps.float().cpu().numpy()), strict=True)),
            "kind": method,
            "experts": _experts(served, details),
        }
    )


def _shown(prediction: Prediction, wanted: list[str] | None) -> list[str]:
    """The labels whose maps are asked for; else those that apply, or the best one."""
    if wanted is None:
        return (prediction.labels or list(prediction.all_scores)[:1])[:MOST_MAPS]
    unknown = next((label for label in wanted if label not in prediction.all_scores), None)
    if unknown is not None:
        raise unknown_name("label", unknown, list(prediction.all_scores)[:50])
    return wanted


def _experts(served: Served, details: HeadDetails) -> dict[str, Any] | None:
    """The gates of the last expert layer on this picture, label by label."""
    from labelwise.analysis.experts import shared_experts

    assert served.model is not None
    shared = shared_experts(served.model.config)
    if shared is None or not details.gates:
        return None
    weights = details.gates[-1][0][details.label_query].float().cpu().numpy()  # [N, n_t + n_s], own ones first
    own = weights.shape[1] - shared
    names = ["own"] if own == 1 else [f"own {number}" for number in range(own)]
    return {
        "names": [*names, *(f"shared {number}" for number in range(shared))],
        "weights": dict(zip(served.tagger.labels, _lists(weights), strict=True)),
    }


def _rounded(scores: dict[str, float]) -> dict[str, float]:
    return {label: round(score, _DIGITS) for label, score in scores.items()}


def _lists(values: Floats) -> list[Any]:
    """Nested lists with as many digits as a picture needs: a map's float32 would be three times as long in JSON."""
    rounded: list[Any] = values.astype(np.float64).round(_DIGITS).tolist()
    return rounded


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
