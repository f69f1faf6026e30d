"""FOLDER IMAGES LABELS MEMORY_LIMIT SHRINK: a whole evaluation in a fresh process, and how much memory it took.

Writes `report.json`, and `kept.npz` with the data and the AP of a few labels for somebody else to check.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from labelwise.metrics import MultiLabelMetrics, ranking
from labelwise.metrics import streaming as store


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def main() -> None:
    folder = Path(sys.argv[1])
    images, labels, memory_limit, shrink = map(int, sys.argv[2:])
    ranking._BLOCK_VALUES //= shrink
    store._CHUNK_BYTES //= shrink
    before, start = peak_bytes(), time.perf_counter()
    rng = np.random.default_rng(0)
    kept = np.linspace(0, labels - 1, 5).astype(int)
    batches = []
    metrics = MultiLabelMetrics(labels, memory_limit=memory_limit)
    for first in range(0, images, 500):
        shape = (min(500, images - first), labels)
        scores = rng.random(shape, dtype=np.float32)
        targets = (rng.random(shape, dtype=np.float32) < 0.01).astype(np.int8)
        metrics.update(scores, targets)
        batches.append((scores[:, kept], targets[:, kept]))
    result = metrics.compute()
    report = {
        "seconds": round(time.perf_counter() - start, 1),
        "peak_bytes": peak_bytes(),
        "growth_bytes": peak_bytes() - before,
        "bytes_on_disk": metrics.bytes_on_disk,
    }
    (folder / "report.json").write_text(json.dumps(report))
    kept_scores, kept_targets = (np.concatenate(part) for part in zip(*batches, strict=True))
    np.savez(folder / "kept.npz", scores=kept_scores, targets=kept_targets, ap=result.average_precision[kept])


if __name__ == "__main__":
    main()
