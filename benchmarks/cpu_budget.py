"""What decides accuracy on a CPU: test mAP against minutes, for size, head, epochs and number of photos.

    python -m benchmarks.cpu_budget measure WORK --voc /data/VOCdevkit --coco /data/coco80.csv --photos /data/coco
    python -m benchmarks.cpu_budget speeds WORK --voc …       # on a quiet machine
    python -m benchmarks.cpu_budget report                    # factors of the planner, its picks, figure and page

`measure` trains every point and writes its test mAP to docs/results/cpu-budget.json; it can be stopped and continued.
It does so on any machine: minutes come from `speeds`, which times features and steps as `labelwise train --minutes`
does, and from the planner's own sum of them. `--other clip-art.csv` (benchmarks/clip_art_table.py) is a table that the
planner was not tuned on.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import log2
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import labelwise as lw
from labelwise.core.files import atomic_write
from labelwise.data import open_data
from labelwise.data.table import LabelTable
from labelwise.engines.measure import machine, work_of_others
from labelwise.training.budget import LEFT_BY_LENGTH, MARGIN, Plan, Speeds, Work, choose
from labelwise.training.recipe import OWN_PHOTOS

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS, PAGE = DOCS / "results" / "cpu-budget.json", DOCS / "research" / "cpu-budget.md"
SECTION = re.compile(r"(<!-- budget: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {"voc": "VOC 2007", "coco": "COCO", "other": "clip art"}
TEST_IMAGES = {"voc": 4000, "coco": 2000, "other": 1000}
QUERY = OWN_PHOTOS.model.head
FEW = 300  # photos: with fewer, more of them help far more than later on
START = 20.0  # seconds: imports, measuring, converting the backbone, saving
BUDGETS = (1, 2, 3, 5, 10, 20)  # minutes
LENGTHS = {0.5: "half the epochs", 2.0: "twice the epochs"}
KEYS = ("data", "images", "head", "size", "epochs")  # of a point; epochs None: as long as the default recipe


def points() -> list[dict[str, Any]]:
    """Every training, the ones that decide first."""

    def of(data: str, images: int, *rows: tuple[str, int, int | None]) -> list[dict[str, Any]]:
        return [dict(zip(KEYS, (data, images, *row), strict=True)) for row in rows]

    linear, query = [("gap", 224, None), ("gap", 288, None)], [(QUERY, 224, None), (QUERY, 288, None)]
    return [
        *of("voc", 5011, *linear, *query, (QUERY, 224, 3), (QUERY, 288, 3), (QUERY, 288, 12)),
        *of("coco", 2000, *linear, *query, (QUERY, 288, 16)),
        *of("other", 2000, *linear, *query, (QUERY, 224, 4), (QUERY, 288, 16)),
        *of("coco", 500, *linear, *query),
        *of("voc", 300, *linear, *query),
        *of("other", 300, *linear, *query),
        *of("voc", 1000, *linear, *query),
        *of("coco", 5000, *linear, *query, (QUERY, 224, 3), (QUERY, 288, 3)),
        *of("coco", 21285, *linear, *query),
    ]


# ---- measuring


def measure(arguments: argparse.Namespace) -> None:
    known = [{key: row[key] for key in KEYS} for row in read()["points"]]
    for point in points():
        if point not in known and point["data"] in given(arguments):
            row = point | trained(point, arguments)
            found = read()
            write(found | {"points": [*found["points"], row]})
            print(row, flush=True)


def trained(point: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    table = data_of(point["data"], point["images"], arguments)
    folder = arguments.work / "-".join(str(value) for value in point.values())
    settings = {key: point[key] for key in ("head", "size", "epochs") if point[key] is not None}
    run = lw.Run(folder) if (folder / "model").exists() else lw.train(table, out=folder, workers=0, **settings)
    result = lw.evaluate(run, table, split="test", bootstrap=0, cache=True).to_dict()
    return {"mAP": round(result["mAP"], 2), "trained_epochs": len(run.history)}


def measure_all_speeds(arguments: argparse.Namespace) -> None:
    from labelwise.training.speeds import measure_speeds

    found = read()
    for data in given(arguments):
        table = data_of(data, 5000, arguments)
        with work_of_others() as others:
            speeds = measure_speeds(Work.of(table, {"augmentation.flip": 0.0}), table)
        found["speeds"] = found.get("speeds", {}) | {
            data: {
                "labels": len(table.labels),
                "others": others(),  # the share of the cores that other programs took
                "features": {str(size): round(one, 5) for size, one in speeds.features.items()},
                "step": {f"{head} {size}": round(one, 5) for (head, size), one in speeds.step.items()},
            }
        }
        print(data, found["speeds"][data], flush=True)
        write(found | {"machine": machine()})


def given(arguments: argparse.Namespace) -> list[str]:
    return [name for name in NAMES if getattr(arguments, name) is not None]


def data_of(data: str, images: int, arguments: argparse.Namespace) -> LabelTable:
    """So many training photos, drawn at random, and the first test photos."""
    if data == "voc":
        table = open_data(f"voc:{arguments.voc}")
    elif data == "coco":
        table = open_data(f"csv:{arguments.coco}?root={arguments.photos}&splits=train,val,more,test")
    else:
        table = open_data(str(arguments.other))
    test = [row for row, split in enumerate(table.splits) if split == "test"][: TEST_IMAGES[data]]
    rest = [row for row, split in enumerate(table.splits) if split != "test"]
    chosen = sorted(random.Random(0).sample(rest, min(images, len(rest))))
    return table.select([*chosen, *test]).with_splits(["train"] * len(chosen) + ["test"] * len(test))


# ---- what it says


@dataclass(frozen=True)
class Measured(Work):
    """The planner's view of a data set of which only some plans were trained."""

    measured: tuple[Plan, ...] = ()

    def plans(self) -> list[Plan]:
        return [plan for plan in self.measured if plan.length in LEFT_BY_LENGTH and self.is_long_enough(plan)]


def plan_of(row: dict[str, Any]) -> Plan:
    images = row["images"]
    usual = Work(images, round(0.8 * images), True).epochs(Plan(row["head"], row["size"], 1.0, images))
    return Plan(row["head"], row["size"], (row["epochs"] or usual) / usual, images)


def scores_of(data: str, found: dict[str, Any]) -> dict[Plan, float]:
    """The mAP of each plan that was trained."""
    rows = [row for row in found["points"] if row["data"] == data]
    return {plan_of(row): row["mAP"] for row in rows}


def view(data: str, found: dict[str, Any]) -> tuple[Measured, Speeds, dict[Plan, float]]:
    """A data set for the planner: its work, the speeds here, and the mAP of each plan."""
    scores = scores_of(data, found)
    images = max(plan.images for plan in scores)
    timed = found["speeds"][data]
    step = {(key.split()[0], int(key.split()[1])): one for key, one in timed["step"].items()}
    speeds = Speeds(START, {int(size): one for size, one in timed["features"].items()}, step)
    return Measured(images, round(0.8 * images), True, {}, tuple(scores)), speeds, scores


def picks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For each data set and budget: what the planner picks, and the best point that was possible."""
    rows = []
    for data in NAMES:
        if data not in found.get("speeds", {}):
            continue
        work, speeds, scores = view(data, found)
        for minutes in BUDGETS:
            try:
                plan = choose(work, speeds, minutes).plan
            except lw.LabelwiseError:
                continue
            fitting = [one for one in scores if work.seconds(one, speeds) <= 60 * minutes * (1 - MARGIN)]
            best = max(fitting, key=lambda one: scores[one])
            rows.append(
                {
                    "data": data,
                    "minutes": minutes,
                    "pick": [*plan],
                    "mAP": scores[plan],
                    "best": [*best],
                    "best_mAP": scores[best],
                    "lost": round(scores[best] - scores[plan], 2),
                }
            )
    return rows


def factors(found: dict[str, Any], data: Sequence[str] = ("voc", "coco")) -> dict[str, float]:
    """What a choice leaves of the missing mAP: the mean over data sets of the mean over pairs of trainings that differ
    in it alone, of this study or of others in docs/results (`elsewhere`)."""
    pairs: dict[str, dict[str, list[float]]] = {}  # by choice and data
    for where in data:
        for scores in (scores_of(where, found), *elsewhere(where)):
            for name, ratio in ratios(scores):
                pairs.setdefault(name, {}).setdefault(where, []).append(ratio)
    return {name: round(geometric_mean(map(geometric_mean, some.values())), 3) for name, some in pairs.items()}


def ratios(scores: dict[Plan, float]) -> Iterator[tuple[str, float]]:
    """Of the missing mAP of two trainings of the same study that differ in one choice; `scores`: their mAP."""
    for (one, score), (other, changed) in permutations(scores.items(), 2):
        left = (100 - changed) / (100 - score)
        if other == one._replace(size=288) and one.size == 224:
            yield "288 pixels", left
        elif other == one._replace(head="gap"):
            yield "gap", left
        elif one.length == 1 and other in (one._replace(length=length) for length in LENGTHS):
            yield LENGTHS[other.length], left
        elif other == one._replace(images=other.images) and other.images > one.images >= FEW:
            yield "twice the photos", left ** (1 / log2(other.images / one.images))


def elsewhere(data: str) -> list[dict[Plan, float]]:
    """Trainings of other studies: the default recipe on more and more photos and, on COCO, a study's heads."""
    if data not in ("voc", "coco"):
        return []
    rows = json.loads((DOCS / "results" / f"thresholds-{data}.json").read_text("utf-8"))["rows"]
    seeds: dict[Plan, list[float]] = {}
    for row in rows:
        seeds.setdefault(Plan("hsq", 224, 1.0, row["images"]), []).append(row["mAP"])  # the default then
    studies = [{plan: mean(some) for plan, some in seeds.items()}]
    if data == "coco":
        runs = json.loads((DOCS / "results" / "coco-study.json").read_text("utf-8"))["runs"]
        studies.append(
            {
                Plan(head, 224, 1.0, 10_000): mean(run["mAP"] for run in runs if run["row"] == head)
                for head in (QUERY, "gap")
            }
        )
    return studies


def read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"points": []}


def write(found: dict[str, Any]) -> None:
    atomic_write(RESULTS, json.dumps(found, indent=1) + "\n")


# ---- page and figure


def report(arguments: argparse.Namespace) -> None:
    found = read()
    found |= {"factors": factors(found), "picks": picks(found)}
    write(found)
    tables = {"points": points_table, "factors": factors_table, "picks": picks_table}
    page = PAGE.read_text("utf-8")
    page = SECTION.sub(lambda match: f"{match[1]}\n{tables[match['name']](found)}\n\n{match[3]}", page)
    PAGE.write_text(page, "utf-8")
    if "speeds" in found:  # without them nobody knows the minutes
        draw(found)


def minutes_of(row: dict[str, Any], found: dict[str, Any]) -> float:
    work, speeds, _ = view(row["data"], found)
    return work.seconds(plan_of(row), speeds) / 60


def points_table(found: dict[str, Any]) -> str:
    rows = [
        "| data | photos | head | pixels | epochs | minutes | mAP |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in sorted(found["points"], key=lambda row: ([*NAMES].index(row["data"]), row["images"], row["mAP"])):
        cells = [NAMES[row["data"]], f"{row['images']:,}", row["head"], row["size"]]
        cells += [row["trained_epochs"], f"{minutes_of(row, found):.1f}", f"{row['mAP']:.2f}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def factors_table(found: dict[str, Any]) -> str:
    names = {"VOC and COCO": ("voc", "coco"), **{NAMES[data]: (data,) for data in found.get("speeds", {})}}
    columns = {name: factors(found, data) for name, data in names.items()}
    header = ["choice", *names]
    rows = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    for choice in columns["VOC and COCO"]:
        cells = [f"{found[choice]:.3f}" if choice in found else "" for found in columns.values()]
        rows.append(f"| {choice} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def picks_table(found: dict[str, Any]) -> str:
    rows = ["| data | minutes | pick | mAP | best that fits | mAP | lost |", "|---|---:|---|---:|---|---:|---:|"]
    for row in found["picks"]:
        pick, best = (in_words(Plan(*row[name])) for name in ("pick", "best"))
        same = "the same" if pick == best else best
        rows.append(
            f"| {NAMES[row['data']]} | {row['minutes']} | {pick} | {row['mAP']:.2f} | {same} | {row['best_mAP']:.2f} | "
            f"{row['lost']:.2f} |"
        )
    return "\n".join(rows)


def in_words(plan: Plan) -> str:
    length = f", {LENGTHS[plan.length]}" if plan.length in LENGTHS else ""
    return f"{plan.head}, {plan.size}{length}, {plan.images:,} photos"


def draw(found: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    shown = [data for data in NAMES if data in found["speeds"]]
    figure, panels = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3.8), layout="constrained")
    for axes, data in zip(panels, shown, strict=True):
        rows = [(minutes_of(row, found), row) for row in found["points"] if row["data"] == data]
        for minutes, row in rows:
            colour = {QUERY: "tab:blue", "gap": "tab:orange"}[row["head"]]
            marker = {224: "o", 256: "s", 288: "^"}[row["size"]]
            length = plan_of(row).length
            fill, edge = (colour if length >= 1 else "none"), ("black" if length > 1 else colour)
            axes.scatter(minutes, row["mAP"], marker=marker, edgecolors=edge, c=fill, s=36)
        front = [
            (minutes, row["mAP"])
            for minutes, row in sorted(rows, key=lambda pair: pair[0])
            if all(other["mAP"] <= row["mAP"] for time, other in rows if time <= minutes)
        ]
        axes.step(*zip(*front, strict=True), where="post", color="black", linewidth=0.8, alpha=0.6)
        axes.set_title(NAMES[data])
        axes.set_xlabel("minutes")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test mAP")
    for label, style in {
        QUERY: {"color": "tab:blue", "marker": "o"},
        "linear (GAP)": {"color": "tab:orange", "marker": "o"},
        "224 pixels": {"color": "grey", "marker": "o"},
        "288 pixels": {"color": "grey", "marker": "^"},
        LENGTHS[0.5]: {"color": "grey", "marker": "o", "markerfacecolor": "none"},
        LENGTHS[2.0]: {"color": "grey", "marker": "o", "markeredgecolor": "black"},
    }.items():
        panels[0].plot([], [], linestyle="none", label=label, **style)
    panels[0].legend(fontsize=7, loc="lower right")
    figure.savefig(DOCS / "images" / "cpu-budget.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["measure", "speeds", "report"])
    parser.add_argument("work", type=Path, nargs="?", help="a folder for the runs")
    for name in ("voc", "coco", "photos", "other"):
        parser.add_argument(f"--{name}", type=Path)
    arguments = parser.parse_args()
    {"measure": measure, "speeds": measure_all_speeds, "report": report}[arguments.stage](arguments)


if __name__ == "__main__":
    main()
