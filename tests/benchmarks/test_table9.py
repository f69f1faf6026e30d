"""ML-Decoder's table 9 as a command: the same columns, on a CPU, with the smallest backbone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import table9


def test_the_columns_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--backbone", "test_resnet", "--size", "64", "--labels", "20", "300", "--batch", "2", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", ["table9.py", "--device", "cpu", *small, "--json", str(tmp_path / "table9.json")])
    table9.main()
    rows = {(row["head"], row["labels"]): row for row in json.loads((tmp_path / "table9.json").read_text())["rows"]}
    assert len(rows) == 6
    assert all(
        row["training_images_per_second"] > 0 and row["inference_images_per_second"] > 0 for row in rows.values()
    )
    # What the table is about: self-attention of many labels costs memory and computation, groups do not.
    decoder, groups = rows["transformer-decoder", 300], rows["ml-decoder", 300]
    assert decoder["maximal_batch"] < 0.8 * groups["maximal_batch"] < rows["gap", 300]["maximal_batch"]
    assert decoder["gflops"] > groups["gflops"] > rows["gap", 300]["gflops"]
