"""Answers about one picture as pieces of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.engines.base import Floats
from labelwise.errors import LabelwiseError, unknown_name
from labelwise.prediction import Prediction
from labelwise.server.library import Served
from labelwise.server.settings import MOST_MAPS
from labelwise.tagger import Tagger

if TYPE_CHECKING:
    from labelwise.heads.details import HeadDetails

_DIGITS = 6


def predicted(tagger: Tagger, values: Floats, options: dict[str, Any]) -> bytes:
    """One entry of /predict's `predictions`, from the scores [N]."""
    prediction = Prediction(tagger, options["image"] or "", values)
    chosen = prediction.choose(options["top"], options["threshold"])
    content: dict[str, Any] = {"image": options["image"], "labels": _rounded(chosen)}
    if options["all_scores"]:
        content["all_scores"] = _rounded(prediction.all_scores)
    return _json(content)


def explained(name: str, served: Served, image: Floats, options: dict[str, Any]) -> bytes:
    """The whole answer of /explain for an input [3, size, size]."""
    import torch

    from labelwise.explain.maps import label_maps, natural_method

    model, labels = served.model, served.tagger.labels
    if model is None:
        raise LabelwiseError(f"the model {name!r} is an exported one: it predicts, and shows nothing of its inside")
    inputs = torch.from_numpy(image)[None].to(next(model.parameters()).device)  # [1, 3, size, size]
    with torch.inference_mode():
        details = model.details(inputs)
    scores = model.config.scores(details.logits.float().cpu().numpy())[0]  # [N]
    prediction = Prediction(served.tagger, "", scores)
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
    from labelwise.explain.gates import shared_experts

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
