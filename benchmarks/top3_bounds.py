"""The best top-3 scores that are possible on a dataset: those of a perfect model, by each convention.

    python benchmarks/top3_bounds.py --data coco:/data/coco2014 --split val --json docs/results/top3-bounds.json

Only the labels are read, so the photos need not be there: `--data 'labels.csv?check_files=no'`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from labelwise.data import open_data
from labelwise.metrics import scores_as


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    targets = open_data(arguments.data).part(arguments.split).targets()  # [M, N]
    perfect = (targets == 1).astype(float)
    bounds = {}
    for name in ("labelwise", "ml-gcn"):
        top = scores_as(name, perfect, targets).at_top_k[3]
        bounds[name] = {"CF1_top3": round(100 * top.CF1, 2), "OF1_top3": round(100 * top.OF1, 2)}
    result = {"split": arguments.split, "images": len(targets), "labels": targets.shape[1], "bounds": bounds}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
