from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import scaling
from labelwise.core.errors import LabelwiseError

SMALL = {"options": {"dim": 16, "groups": 10}, "batch": 2, "channels": 8, "side": 2, "seconds": 0.0, "threads": 1}


def test_a_case_is_measured_and_one_that_does_not_fit_is_a_result() -> None:
    """Real processes; the second head alone would take 2 GB."""
    import labelwise as lw

    head = lw.heads.create("ml-decoder", in_features=8, labels=500, dim=16, groups=10)
    small = scaling.run_case({"head": "ml-decoder", "labels": 500, "mode": "training", **SMALL}, 300)
    assert small["status"] == "ok"
    assert small["parameters"] == sum(p.numel() for p in head.parameters())
    assert small["milliseconds"] > 0
    assert 0 < small["megabytes"] < 400
    large = {"head": "gap", "labels": 200_000, **SMALL, "options": {}, "channels": 2500, "memory_limit": 0.5}
    assert scaling.run_case(large, 300)["status"] == "out of memory"


def test_a_process_that_takes_too_long_is_a_result() -> None:
    assert scaling.run_case({"head": "gap", "labels": 10}, 0.05) == {"status": "out of time"}


def test_rows_take_turns_and_the_fastest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int, str]] = []

    def result(case: dict[str, Any], time_limit: float) -> dict[str, Any]:
        asked.append((case["head"], case["labels"], case["mode"]))
        if case["head"] == "transformer-decoder" and case["labels"] == 1000:
            return {"status": "out of memory"}
        return {"status": "ok", "parameters": 7, "milliseconds": 100.0 / len(asked), "megabytes": 5.0}

    monkeypatch.setattr(scaling, "run_case", result)
    heads = ("gap", "transformer-decoder", "grouped-hsq")
    scaling.scaling(labels=(100, 1000), heads=heads, groups=300, json=tmp_path / "a.json", plot=tmp_path / "a.png")
    assert asked[:4] == [
        ("gap", 100, "inference"),
        ("gap", 100, "training"),
        *[("gap", 1000, m) for m in ("inference", "training")],
    ]
    assert len(asked) == 12 + 10  # what did not fit in the first round is not tried in the second
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert rows[0]["inference_ms"] == pytest.approx(100 / 13)
    assert [row["inference_ms"] for row in rows if row["head"] == "transformer-decoder"][1] == "out of memory"
    assert [row["queries"] for row in rows] == [None, None, 100, 1000, 100, 300]
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "out of memory" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(LabelwiseError, match="unknown head 'hsqq'; did you mean 'hsq'"):
        scaling.scaling(heads=("hsqq",))
