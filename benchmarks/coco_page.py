"""Write the tables and answers of docs/research/coco.md from docs/results/coco-*.json, as far as there are results.

python benchmarks/coco_page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from statistics import mean
from typing import Any

from study import read_study
from study_page import DOCS, RESULTS, filled, table, with_spread

PAGE = DOCS / "research" / "coco.md"
PHOTOS = 10_000  # that a row trains on
# Rows of a table with the papers' mAP; None where the paper has no such row.
HSQ_TABLE = {"q2l": 74.8, "hsq-s0": 71.5, "hsq-linear": 75.7, "hsq-s1": 76.3, "hsq-s4": 76.1, "hsq": 76.5}
ML_DECODER_TABLE = {
    "gap": 87.0,
    "transformer-decoder": 88.1,
    "ml-decoder-k80": 88.1,
    "ml-decoder-k20": 88.0,
    "ml-decoder-k5": None,
}
QUERY_TABLE = {"ml-decoder-learnable": 88.1, "ml-decoder-k80": 88.1, "ml-decoder-words": 88.1}
BODIES = {  # the same transformer with no experts, plain layers, hybrid sharing with so many shared experts
    "HSQ's": ("hsq-baseline", "hsq-linear", "hsq-s0", "hsq-s1", "hsq-s4", "hsq"),
    "Query2Label's": ("q2l", None, None, None, None, "q2l-hybrid"),
}
STARTS = {"hsq": "hsq-independent", "hsq-s0": "hsq-s0-independent", "hsq-linear": "hsq-linear-independent"}
FREQUENT = (  # the 15 labels with the most training photos, as benchmarks/label_pairs.py finds them
    *("person", "chair", "car", "dining table", "cup", "bottle", "bowl", "handbag"),
    *("truck", "book", "bench", "backpack", "cell phone", "sink", "tv"),
)
NAMES = {
    "gap": "GAP",
    "csra": "CSRA",
    "q2l": "Query2Label",
    "hsq": "HSQ (16 shared experts)",
    "hsq-s0": "HSQ without shared experts",
    "hsq-s1": "HSQ with 1 shared expert",
    "hsq-s4": "HSQ with 4 shared experts",
    "hsq-linear": "HSQ-Linear",
    "hsq-baseline": "HSQ's transformer without experts",
    "q2l-hybrid": "Query2Label with HSQ's experts",
    "transformer-decoder": "Transformer decoder",
    "ml-decoder-k80": "ML-Decoder with 80 random queries",
    "ml-decoder-k20": "ML-Decoder with 20 queries",
    "ml-decoder-k5": "ML-Decoder with 5 queries",
    "ml-decoder-learnable": "ML-Decoder with learnable queries",
    "ml-decoder-words": "ML-Decoder with word queries",
    "hsq-4-epochs": "HSQ after 4 epochs",
    "q2l-4-epochs": "Query2Label after 4 epochs",
}


@cache
def results(name: str) -> dict[str, Any]:
    """A file of results; empty if there is none yet."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def summary() -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in results("coco-study").get("summary", [])}


def difference(row: str, reference: str) -> dict[str, Any] | None:
    """What the study found between two rows."""
    for found in results("coco-study").get("differences", []):
        if (found["row"], found["reference"]) == (row, reference):
            return dict(found)
    return None


def verdict(found: dict[str, Any]) -> str:
    """`higher` or `lower` if the interval excludes 0 and all seeds agree; one seed alone is named as such."""
    low, high = found["interval"]
    only = " in one seed" if len(found["of_seeds"]) == 1 else ""
    if low > 0 and min(found["of_seeds"]) > 0:
        return f"higher{only}"
    if high < 0 and max(found["of_seeds"]) < 0:
        return f"lower{only}"
    return "no clear difference"


def gap_text(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"


def versus(row: str, reference: str) -> str:
    """A cell: the difference with its interval, or nothing if one of the two has not been run."""
    found = difference(row, reference)
    return "" if found is None else f"{gap_text(found)}, {verdict(found)}"


def sentences(pairs: Iterable[tuple[str, str]]) -> str:
    """Every difference in words, with its number of seeds; then the pairs that have not been measured."""
    said, missing = [], []
    for row, reference in pairs:
        found = difference(row, reference)
        if found is None:
            missing.append(f"{NAMES[row]} against {NAMES[reference]}")
            continue
        seeds = f"{len(found['seeds'])} seed{'s' if len(found['seeds']) > 1 else ''}"
        clear = re.sub("^(higher|lower)", r"**\1**", verdict(found))
        said.append(f"- {NAMES[row]} against {NAMES[reference]}: {gap_text(found)}, {seeds}: {clear}.")
    if missing:
        said.append(f"- Not measured yet: {'; '.join(missing)}.")
    return "\n".join(said)


def mean_text(row: dict[str, Any] | None) -> str:
    return with_spread(row) if row else "not run yet"


def paper_table(rows: dict[str, float | None], reference: str) -> str:
    """The paper's mAP and ours, and the difference to a reference row in both."""
    found, base = summary(), rows[reference]
    lines = []
    for name, paper in rows.items():
        ours = found.get(name)
        lines.append(
            [
                f"`{name}`",
                "" if paper is None else f"{paper:.1f}",
                "" if paper is None or base is None or name == reference else f"{paper - base:+.1f}",
                mean_text(ours),
                str(ours["seeds"]) if ours else "0",
                "" if name == reference else versus(name, reference),
                f"{ours['head_macs'] / 1e6:.1f}" if ours else "",
            ]
        )
    against = f"against `{reference}`"
    return table(["row", "paper", against, "mAP here", "seeds", f"{against} (95 %)", "M multiply-adds"], lines)


def hsq_answer() -> str:
    return sentences([("hsq", "q2l"), ("hsq-s0", "q2l"), ("hsq", "hsq-s0"), ("hsq", "hsq-s1"), ("hsq", "hsq-linear")])


def control_table() -> str:
    """mAP of one body with different experts, and its seeds."""
    found = summary()

    def cell(name: str | None) -> str:
        return f"{with_spread(found[name])} ({found[name]['seeds']})" if name in found else ""

    header = ["transformer", "no experts", "plain layers", *(f"hybrid, {n} shared" for n in (0, 1, 4, 16))]
    return table(header, [[body, *map(cell, names)] for body, names in BODIES.items()])


def control_answer() -> str:
    pairs = [("hsq", "hsq-baseline"), ("hsq-s0", "hsq-baseline"), ("hsq-linear", "hsq-baseline")]
    return sentences([*pairs, ("hsq-baseline", "q2l"), ("q2l-hybrid", "q2l")])


def starts_table() -> str:
    found = summary()
    rows = [
        [f"`{name}`", mean_text(found.get(name)), mean_text(found.get(other)), versus(name, other)]
        for name, other in STARTS.items()
    ]
    return table(["row", "similar (default)", "independent", "similar against independent (95 %)"], rows)


def queries_answer() -> str:
    return sentences([("ml-decoder-learnable", "ml-decoder-k80"), ("ml-decoder-words", "ml-decoder-k80")])


def heads_answer() -> str:
    pairs = [("transformer-decoder", "gap"), ("ml-decoder-k80", "gap"), ("ml-decoder-k80", "transformer-decoder")]
    return sentences([*pairs, ("ml-decoder-k20", "ml-decoder-k80"), ("ml-decoder-k5", "ml-decoder-k80")])


def between_answer() -> str:
    pairs = [("hsq", "ml-decoder-k80"), ("q2l", "ml-decoder-k80"), ("hsq", "gap"), ("q2l", "gap"), ("csra", "gap")]
    return sentences([*pairs, ("hsq", "hsq-4-epochs"), ("q2l", "q2l-4-epochs"), ("hsq-4-epochs", "q2l-4-epochs")])


def state() -> str:
    """What is behind the page: rows and seeds, and what is missing."""
    found = summary()
    wanted = list(read_study("coco")["rows"])
    by_seeds: dict[int, list[str]] = {}
    for name in wanted:
        by_seeds.setdefault(found[name]["seeds"] if name in found else 0, []).append(f"`{name}`")
    lines = [
        f"- {seeds} seed{'' if seeds == 1 else 's'}: {', '.join(names)}" if seeds else f"- not run: {', '.join(names)}"
        for seeds, names in sorted(by_seeds.items(), reverse=True)
    ]
    trials = len(results("coco-tuning").get("runs", []))
    lines.append(f"- trials on `val`: {trials or 'none yet; the settings are those that won on VOC'}")
    return "\n".join(lines)


def speed(cost: dict[str, float] | None, epochs: int, images: int) -> list[str]:
    """Minutes that a training computes in the head, and images a second that the optimised head answers."""
    if cost is None:
        return ["", ""]
    minutes = cost["train_ms"] * epochs * images / cost["batch"] / 60e3
    return [f"{minutes:.1f}", f"{cost['batch'] / cost['answer_ms'] * 1e3:,.0f}"]


def test_table() -> str:
    """Every row, the best first."""
    costs, rows_of = results("coco-study").get("costs", {}), read_study("coco")["rows"]
    metrics = ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")
    rows = [
        [
            row["row"],
            str(row["seeds"]),
            *(with_spread(row, name) for name in metrics),
            f"{row['head_parameters'] / 1e6:.2f}",
            f"{row['head_macs'] / 1e6:.1f}",
            *speed(costs.get(row["row"]), rows_of[row["row"]]["set"]["epochs"], PHOTOS),
        ]
        for row in sorted(summary().values(), key=lambda row: -row["mAP"])
    ]
    header = ["row", "seeds", "mAP", "CF1", "OF1", "top-3 CF1", "top-3 OF1", "M parameters", "M multiply-adds"]
    return table([*header, "minutes to train", "images/s"], rows)


def every_photo_table() -> str:
    """The rows that were also trained and tested on all photos."""
    larger = results("coco-all").get("summary", [])
    if not larger:
        return "Not run yet."
    found = summary()
    return table(
        ["row", "seeds", "mAP on all photos", "mAP on 10,000 and 4,000"],
        [
            [f"`{row['row']}`", str(row["seeds"]), with_spread(row), mean_text(found.get(row["row"]))]
            for row in sorted(larger, key=lambda row: -row["mAP"])
        ],
    )


def trials_table() -> str:
    trials = results("coco-tuning").get("summary", [])
    if not trials:
        return "No trials yet."
    chosen = {name: settings["set"] for name, settings in read_study("coco")["rows"].items()}
    return table(
        ["head", "learning rate", "mAP on val", "in the tables"],
        [
            [
                f"`{row['row']}`",
                f"{row['optimizer.lr']:g}",
                f"{row['mAP']:.2f}",
                "yes" if chosen[row["row"]]["optimizer.lr"] == row["optimizer.lr"] else "",
            ]
            for row in trials
        ],
    )


def joint_table() -> str:
    """The 15 most frequent labels: HSQ and Query2Label of all 80 labels, and a separate model for each label."""
    found = difference("hsq", "q2l")
    if found is None:
        return "Not measured yet."
    separate = results("coco-study").get("alone", [])
    alone = {row["row"]: {each["label"]: each for each in row["labels"]} for row in separate}
    rows = {each["label"]: each for each in found["labels"]}
    better = [name for name in FREQUENT if rows[name]["difference"] > 0]
    lines = [
        [
            name,
            *(f"{mean_precision(row, name):.1f}" for row in ("q2l", "hsq")),
            significant(rows[name]),
            *(significant(alone[row][name]) if row in alone else "" for row in ("q2l", "hsq")),
        ]
        for name in FREQUENT
    ]
    pairs = len(better) * (len(better) - 1) // 2
    counted = (
        f"HSQ is above Query2Label for {len(better)} of these {len(FREQUENT)} labels: {pairs} of 105 pairs improve"
    )
    sure = sum(rows[name]["significant"] for name in FREQUENT)
    header = [
        "label",
        "Query2Label",
        "HSQ",
        "HSQ against Query2Label",
        "Query2Label against alone",
        "HSQ against alone",
    ]
    return f"{table(header, lines)}\n\n{counted} in both labels. Of the 15 differences {sure} are significant."


def mean_precision(row: str, label: str) -> float:
    return mean(run["AP"][label] for run in results("coco-study")["runs"] if run["row"] == row)


def significant(each: dict[str, Any]) -> str:
    low, high = each["interval"]
    shown = f"{each['difference']:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{shown}**" if each["significant"] else shown


def pairs_table() -> str:
    """What a label gains by a partner, for both heads."""
    found = results("coco-pairs").get("heads", {})
    if not found:
        return "Not run yet."
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "pairs that were trained": lambda head: str(head["pairs"]),
        "both labels gain": lambda head: str(head["both_gain"]),
        "one gains, one loses": lambda head: str(head["one_gains"]),
        "both lose": lambda head: str(head["none_gains"]),
        "labels that surely gain by a partner": lambda head: str(head["significant_gains"]),
        "labels that surely lose": lambda head: str(head["significant_losses"]),
        "mean gain in AP (95 %)": lambda head: gain_text(head["mean"]),
        "deviation between seeds": lambda head: f"{head['seed_sd']:.2f}",
    }
    header = ["", *(NAMES[name].removesuffix(" (16 shared experts)") for name in found)]
    lines = [[text, *(cell(head) for head in found.values())] for text, cell in rows.items()]
    extremes = "\n".join(f"- {NAMES[name]}: {most_changed(head)}" for name, head in found.items())
    image = "![What each label gains by each partner, for both heads](../images/coco-pairs.png)"
    return f"{table(header, lines)}\n\n{image}\n\nThe largest changes (bold: significant):\n\n{extremes}"


def gain_text(found: dict[str, Any]) -> str:
    return f"{found['gain']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"


def most_changed(head: dict[str, Any]) -> str:
    ranked = sorted(head["gains"], key=lambda row: row["gain"])
    shown = [
        f"{'**' if row['significant'] else ''}{row['label']} with {row['partner']} {row['gain']:+.1f}"
        f"{'**' if row['significant'] else ''}"
        for row in [*ranked[-3:][::-1], *ranked[:3]]
    ]
    return ", ".join(shown)


SECTIONS: dict[str, Callable[[], str]] = {
    "state": state,
    "hsq-table": lambda: paper_table(HSQ_TABLE, "q2l"),
    "hsq-answer": hsq_answer,
    "control": control_table,
    "control-answer": control_answer,
    "starts": starts_table,
    "ml-decoder-table": lambda: paper_table(ML_DECODER_TABLE, "gap"),
    "ml-decoder-answer": heads_answer,
    "queries": lambda: paper_table(QUERY_TABLE, "ml-decoder-k80"),
    "queries-answer": queries_answer,
    "between": between_answer,
    "joint": joint_table,
    "pairs": pairs_table,
    "every-photo": every_photo_table,
    "trials": trials_table,
    "test": test_table,
}


def with_results(text: str) -> str:
    """The page with the tables and answers of the results."""
    return filled(text, SECTIONS)


if __name__ == "__main__":
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
