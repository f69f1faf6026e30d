"""The promise on speed: at least twice torchmetrics' exact mAP, the same value, in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_map_is_at_least_twice_as_fast_as_torchmetrics_and_equal(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "metrics.py"
    subprocess.run([sys.executable, script, "--repeats", "3", "--json", tmp_path / "report.json"], check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["speedup_over_torchmetrics"]["fastest"] >= 2
    assert report["speedup_over_torchmetrics"]["median"] >= 2
    assert report["difference_to_torchmetrics"] <= 1e-6
