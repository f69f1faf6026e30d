"""What decides accuracy on a CPU: test mAP against minutes, for size, head, epochs, number of photos and trained part.

python -m benchmarks.cpu_budget measure WORK --voc /data/VOCdevkit --coco /data/coco80.csv --photos /data/coco
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import labelwise as lw
from labelwise.core.files import atomic_write
from labelwise.data import open_data
from labelwise.data.table import LabelTable

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "cpu-budget.json"
TEST_IMAGES = 4000


def points() -> list[dict[str, Any]]:
    """Every training of the study, the ones that decide first."""

    def of(data: str, images: int, *settings: tuple[str, int, int | None]) -> list[dict[str, Any]]:
        return [
            {"data": data, "images": images, "head": head, "size": size, "epochs": epochs}
            for head, size, epochs in settings
        ]

    usual = [("hsq", 224, None), ("gap", 224, None), ("hsq", 288, None), ("gap", 288, None)]
    return [
        *of("voc", 5011, *usual, ("hsq", 224, 3), ("hsq", 288, 3)),
        *of("coco", 2000, *usual),
        *of("other", 3524, *usual, ("hsq", 224, 3)),
        *of("coco", 5000, *usual, ("hsq", 224, 3)),
        *of("coco", 21285, *usual[1:2], ("hsq", 224, 3)),
        *of("coco", 500, *usual),
        *of("voc", 500, *usual),
        *of("coco", 21285, *usual),
    ]


def measure(arguments: argparse.Namespace) -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"points": []}
    wanted = [one for one in points() if arguments.data in (None, one["data"])]
    known = [{key: row[key] for key in ("data", "images", "head", "size", "epochs")} for row in found["points"]]
    missing = [one for number, one in enumerate(wanted) if one not in known and one not in wanted[:number]]
    for point in missing[: arguments.limit]:
        row = point | trained(point, arguments)
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"points": []}
        found["points"].append(row)
        atomic_write(RESULTS, json.dumps(found, indent=1) + "\n")
        print(row, flush=True)
    raise SystemExit(0 if missing[arguments.limit :] else 3)  # 3: nothing is left


def trained(point: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    table = data_of(point, arguments)
    name = "-".join(str(value) for value in point.values())
    settings = {key: point[key] for key in ("head", "size", "epochs") if point[key] is not None}
    folder = arguments.work / name
    run = lw.Run(folder) if (folder / "model").exists() else lw.train(table, out=folder, workers=0, **settings)
    result = lw.evaluate(run, table, split="test", bootstrap=0, cache=True).to_dict()
    return {"mAP": round(result["mAP"], 2), "trained_epochs": len(run.history)}


def data_of(point: dict[str, Any], arguments: argparse.Namespace) -> LabelTable:
    """So many training photos, drawn at random, and the first test photos."""
    if point["data"] == "voc":
        table = open_data(f"voc:{arguments.voc}")
    elif point["data"] == "coco":
        table = open_data(f"csv:{arguments.coco}?root={arguments.photos}&splits=train,val,more,test")
    else:
        table = open_data(str(arguments.other))
    test = [row for row, split in enumerate(table.splits) if split == "test"][:TEST_IMAGES]
    rest = [row for row, split in enumerate(table.splits) if split != "test"]
    chosen = sorted(random.Random(0).sample(rest, min(point["images"], len(rest))))
    return table.select([*chosen, *test]).with_splits(["train"] * len(chosen) + ["test"] * len(test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["measure"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--voc", type=Path)
    parser.add_argument("--coco", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int, default=1000)
    arguments = parser.parse_args()
    measure(arguments)


if __name__ == "__main__":
    main()
