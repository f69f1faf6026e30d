"""The benchmark of the server: small, real, and not blind to wrong answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed import serve as bench
from labelwise.runtime.tagger import Tagger


def test_a_small_run(tiny: Path, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_WARM_UP", 0.3)
    file = tmp_path / "serve.json"
    bench.serve(
        model=str(tiny), photos=Path(photos[0]).parent, images=12, clients=4, seconds=1, batch=4, json=file,
        engine="onnxruntime",
    )  # fmt: skip
    text = file.read_text()
    assert str(tmp_path) not in text
    assert str(tiny.parent) not in text
    report = json.loads(text)
    before, served, after = report["rows"]
    assert served["images"] > 10
    assert (served["lost"], served["wrong"]) == (0, 0)
    assert 0 < served["p50"] <= served["p90"] <= served["p99"]
    assert served["memory_early"] > 10
    ratio = report["checks"][0]["value"]
    offline = 2 / (1 / before["images_per_s"] + 1 / after["images_per_s"])
    assert ratio == pytest.approx(100 * served["images_per_s"] / offline)


def test_wrong_and_missing_answers_are_counted(tiny_tagger: Tagger, photos: list[str]) -> None:
    (prediction,) = tiny_tagger.predict(photos[0])
    scores = prediction.all_scores
    right = {"image": None, "labels": prediction.choose(), "all_scores": scores}
    best, *_ = scores

    def answer(status: int = 200, **changes: object) -> tuple[int, float, float, int, str]:
        return 0, 0.0, 1.0, status, json.dumps({"predictions": [{**right, **changes}]})

    assert bench.compare([answer()] * 3, [scores], tiny_tagger) == (0, 0)
    other_score = answer(all_scores={**scores, best: scores[best] - 0.01})
    other_labels = answer(labels={label: score for label, score in prediction.choose().items() if label != best})
    a_label_is_missing = answer(all_scores={label: score for label, score in scores.items() if label != best})
    assert bench.compare([other_score, other_labels, a_label_is_missing], [scores], tiny_tagger) == (3, 0)
    assert bench.compare([answer(503), answer(0)], [scores], tiny_tagger) == (0, 2)
