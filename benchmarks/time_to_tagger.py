"""From a table of photos to a saved tagger: the time of the defaults, part by part, and what it was worth.

    git worktree add ../before c9f077f
    python benchmarks/time_to_tagger.py --data coco.csv --before ../before --json benchmarks/results/time-to-tagger.json

`before` runs the code of another checkout, `now` that of this one, each with its own defaults, process and feature
cache, in turns. The test images of the data are measured with `labelwise evaluate`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labelwise.data import open_data
from labelwise.data.manifests import write_manifest
from labelwise.engines.measure import machine


def timed(words: list[str], code: Path, cache: Path) -> tuple[float, str]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "labelwise", *words]
    settings = os.environ | {"LABELWISE_CACHE": str(cache), "PYTHONPATH": str(code / "src")}
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return time.perf_counter() - start, done.stdout


def measured(way: str, code: Path, data: Path, folder: Path) -> dict[str, Any]:
    run, cache = folder / way, folder / f"{way}-cache"
    seconds, _ = timed(["train", "--data", str(data), "--out", str(run)], code, cache)
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    words = ["evaluate", str(run), "--data", str(data), "--split", "test", "--bootstrap", "0"]
    evaluate, printed = timed(words, code, cache)
    score = re.search(r"mAP\D*([\d.]+)", printed)
    return {
        "seconds": round(seconds, 1),
        "epochs_seconds": round(epochs[-1]["seconds"], 1),
        "images_per_second": round(epochs[-1]["images_per_second"], 1),
        "features_and_rest_seconds": round(seconds - epochs[-1]["seconds"], 1),
        "evaluate_seconds": round(evaluate, 1),
        "test_mAP": float(score[1]) if score else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a table with the splits train and test")
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the code to compare with")
    parser.add_argument("--images", type=int, default=8000, help="of the training split")
    parser.add_argument("--test-images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = open_data(arguments.data)
    train, test = table.select("train"), table.select("test")
    chosen = [*range(min(arguments.images, len(train)))], [*range(min(arguments.test_images, len(test)))]
    rounds: list[dict[str, Any]] = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "photos.csv"
            wanted = {*train.select(chosen[0]).images, *test.select(chosen[1]).images}
            write_manifest(table.select([row for row, image in enumerate(table.images) if image in wanted]), data)
            ways = {"before": arguments.before.resolve(), "now": Path(__file__).resolve().parents[1]}
            rounds.append({way: measured(way, code, data, Path(folder)) for way, code in ways.items()})
        ratio = rounds[-1]["now"]["seconds"] / rounds[-1]["before"]["seconds"]
        rounds[-1]["now_of_before"] = round(ratio, 2)
        print(json.dumps(rounds[-1], indent=1), flush=True)
    if arguments.json:
        about = {"images": len(chosen[0]), "test_images": len(chosen[1]), "labels": len(table.labels)}
        result = {"machine": machine(), **about, "rounds": rounds}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
