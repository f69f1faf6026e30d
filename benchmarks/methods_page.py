"""Every head on one footing: train what is missing, then write docs/research/every-head.md and its figure.

    python benchmarks/methods_page.py --out study --voc voc:/data/VOCdevkit --voc-words voc-glove.npy \\
        --coco coco14k.csv --coco-words coco-glove.npy
    python benchmarks/methods_page.py

The first is the whole study by benchmarks/study.py, hours on one core (OMP_NUM_THREADS=1); started again, it goes on
where it was stopped. The second takes the results as they are.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from coco_page import results, speed
from labelwise.analysis.comparison import difference_as_dict
from labelwise.evaluation import paired_difference
from study import read_halves, read_study
from study_page import DOCS, RESULTS, filled, table, with_spread

PAGE, IMAGE = DOCS / "research" / "every-head.md", DOCS / "images" / "every-head.png"
# Rows of the COCO study with the very same settings: they are not run again. On VOC the same rows had their trials.
SAME = {
    **{"hsq": "hsq", "hsq-linear": "hsq-linear", "hsq-baseline": "hsq-baseline", "q2l": "q2l"},
    **{"transformer-decoder": "transformer-decoder", "ml-decoder": "ml-decoder-k20"},
}
STUDIES = {"voc": "VOC", "coco": "COCO"}
IMAGES = {"voc": 5011, "coco": 10000}  # that a row trains on


def summary(name: str) -> dict[str, dict[str, Any]]:
    """Every row that has been run, the best first."""
    found = {row["row"]: row for row in results(f"methods-{name}").get("summary", [])}
    others = {row["row"]: row for row in results("coco-study").get("summary", [])} if name == "coco" else {}
    taken = {row: others[other] for row, other in SAME.items() if other in others}
    return dict(sorted((taken | found).items(), key=lambda item: -item[1]["mAP"]))


def test_table(name: str) -> str:
    """Every row, the best first; then those that have not been run."""
    found, epochs = summary(name), read_study(f"methods_{name}")["always"]["epochs"]
    gaps = {each["row"]: each for each in results(f"methods-{name}").get("differences", [])}
    if name == "coco":
        gaps |= of_the_coco_study()
    lines = [
        [
            f"`{head}`",
            str(row["seeds"]),
            *(with_spread(row, metric) for metric in ("mAP", "CF1", "OF1")),
            against(gaps.get(head)),
            f"{row['head_parameters'] / 1e6:.2f}",
            f"{row['head_macs'] / 1e6:.1f}",
            *speed(results(f"methods-{name}").get("costs", {}).get(head), epochs, IMAGES[name]),
        ]
        for head, row in found.items()
    ]
    header = ["head", "seeds", "mAP", "CF1", "OF1", "against `gap` (95 %)", "M parameters", "M multiply-adds"]
    missing = [f"`{head}`" for head in read_study(f"methods_{name}")["rows"] if head not in found]
    said = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return table([*header, "minutes to train", "images/s"], lines) + said


def of_the_coco_study() -> dict[str, dict[str, Any]]:
    """The rows that are taken from it, minus the linear probe here: means over the seeds that each has, on the same
    halves of the test images."""
    here, there = (read_halves(RESULTS / f"{name}.json") for name in ("methods-coco", "coco-study"))
    probe, scores = of_row(here, "gap"), {name: row["mAP"] for name, row in summary("coco").items()}
    rows = [(row, of_row(there, other)) for row, other in SAME.items()]
    return {
        row: difference_as_dict(
            paired_difference((scores[row] - scores["gap"]) / 100, np.mean(drawn, axis=0), np.mean(probe, axis=0))
        )
        for row, drawn in rows
        if drawn and probe
    }


def of_row(halves: dict[str, np.ndarray], row: str) -> list[np.ndarray]:
    """What the runs of a row have on the halves of the test images."""
    return [drawn for run, drawn in halves.items() if run.rpartition("_seed-")[0] == row]


def against(found: dict[str, Any] | None) -> str:
    """The difference in mAP with its interval; bold if that excludes 0."""
    if found is None:
        return ""
    low, high = found["interval"]
    shown = f"{found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def trials_table() -> str:
    """mAP on val by learning rate, and what the rows of the table have."""
    trials: dict[str, dict[float, float]] = {}
    ours = {other: row for row, other in SAME.items()}
    studied = [run for run in results("voc-tuning")["runs"] if run["row"] in ours and run.get("pair_mix") == 0.5]
    for run in [*results("methods-tuning").get("runs", []), *studied]:
        row = ours.get(run["row"], run["row"])
        trials.setdefault(row, {})[run["optimizer.lr"]] = run["val_mAP"][-1]
    rows = {name: settings for name, settings in read_study("methods_voc")["rows"].items() if name in trials}
    missing = [f"`{name}`" for name in read_study("methods_voc")["rows"] if name not in trials]
    lines = [
        [
            f"`{name}`",
            ", ".join(f"{rate:g}: {score:.2f}" for rate, score in sorted(trials[name].items())),
            f"{settings['set']['optimizer.lr']:g}",
        ]
        for name, settings in rows.items()
    ]
    said = f"\n\nNo trial yet, and the lower rate in the table: {', '.join(missing)}." if missing else ""
    return table(["head", "learning rate: mAP on val", "in the table"], lines) + said


def draw() -> None:
    """Accuracy against multiply-adds, for every dataset on which the linear probe has been run."""
    shown = {title: found for name, title in STUDIES.items() if "gap" in (found := summary(name))}
    figure, panels = plt.subplots(1, len(shown), figsize=(8 * len(shown), 5.5), layout="constrained", squeeze=False)
    for axes, (title, found) in zip(panels[0], shown.items(), strict=True):
        costs, scores = ([row[key] for row in found.values()] for key in ("head_macs", "mAP"))
        axes.plot([cost / 1e6 for cost in costs], scores, "o", color="tab:blue")
        place = math.inf  # names stand in a column on the right, where there is room for all of them
        for head, row in found.items():
            place = min(row["mAP"], place - (scores[0] - scores[-1]) / 28)
            axes.annotate(
                head,
                (row["head_macs"] / 1e6, row["mAP"]),
                xytext=(1.03, place),
                textcoords=axes.get_yaxis_transform(),
                arrowprops={"arrowstyle": "-", "color": "lightgray", "relpos": (0, 0.5)},
                va="center",
                fontsize=8,
            )
        axes.set(
            xscale="log", xlabel="multiply-adds of the head, in millions (backbone: 575)", ylabel="mAP", title=title
        )
        axes.grid(alpha=0.3)
    figure.savefig(IMAGE, dpi=110)


SECTIONS = {"voc": lambda: test_table("voc"), "coco": lambda: test_table("coco"), "trials": trials_table}


def with_results(text: str) -> str:
    """The page with the tables of the results."""
    return filled(text, SECTIONS)


def studies(arguments: argparse.Namespace) -> list[list[str]]:
    """What to call benchmarks/study.py with."""
    found = []
    for name in STUDIES:
        data, words = (getattr(arguments, f"{name}{what}") for what in ("", "_words"))
        if data is not None:
            given = ["--data", data, "--words", words]
            if name == "coco":
                rows = ["--rows", *SAME.values()]
                found.append(["coco", "test", *given, *rows, "--out", str(arguments.out / "coco")])
            stages = [stage for stage in ("tune", "test") if stage in read_study(f"methods_{name}")["stages"]]
            out = ["--out", str(arguments.out / f"methods-{name}")]
            found.append([f"methods_{name}", *stages, "compare", "cost", *given, *out])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for the runs")
    for name, title in STUDIES.items():
        parser.add_argument(f"--{name}", help=f"the data of {title}: train it, too")
        parser.add_argument(f"--{name}-words", help="the word vectors of its labels")
    arguments = parser.parse_args()
    for name in STUDIES:
        if getattr(arguments, name) and not (arguments.out and getattr(arguments, f"{name}_words")):
            parser.error(f"--{name} needs --out and --{name}-words")
    for words in studies(arguments):
        subprocess.run([sys.executable, Path(__file__).with_name("study.py"), *words], check=True)
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
