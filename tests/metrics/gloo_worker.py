"""One of two real processes: FOLDER RANK. Collects its share of the images, computes over both, once per share."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from labelwise.metrics import MultiLabelMetrics, ranking


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    ranking._BLOCK_VALUES = 200  # several blocks of labels, so that both processes get a turn
    data = np.load(folder / "data.npz")
    reports = []
    for first_share in data["first_shares"]:
        own = slice(0, first_share) if rank == 0 else slice(first_share, None)
        metrics = MultiLabelMetrics(7, top_k=(1, 3))
        if len(data["scores"][own]):
            metrics.update(data["scores"][own], data["targets"][own])
        reports.append({"all": metrics.compute().to_dict(), "own_images": metrics.images})
        if metrics.images:
            reports[-1]["own"] = metrics.compute(all_processes=False).to_dict()
    (folder / f"{rank}.json").write_text(json.dumps(reports))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
