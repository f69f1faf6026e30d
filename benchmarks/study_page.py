"""Write the tables of docs/research/study.md from docs/results/voc-*.json and hsq-freedoms.json.

python benchmarks/study_page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, RESULTS = DOCS / "research" / "study.md", DOCS / "results"
MAIN = ("hsq", "q2l", "hsq-linear", "transformer-decoder", "ml-decoder-k20", "ml-decoder-k5", "csra", "gap")
HEADS_BY_LABEL = ("hsq", "q2l", "ml-decoder-k20", "transformer-decoder", "csra", "gap")
MORE = ("hsq", "hsq-fine-tuned", "ml-decoder-k20", "ml-decoder-fine-tuned", "gap", "gap-288", "hsq-288")
# Variations of HSQ that were measured on val: what they are, by their row in voc-tuning.json or hsq-freedoms.json.
VARIATIONS = {
    "hsq-smoothing": "BCE with label smoothing 0.1",
    "balance-0.1": "load-balancing loss, weight 0.1",
    "hsq-bce": "BCE instead of asymmetric loss",
    "hsq-averaged": "averaged weights (EMA 0.995)",
    "hsq-decay": "weight decay 0.1, ten times as much",
    "balance-0.01": "load-balancing loss, weight 0.01",
    "temperature-0.5": "sharper gates (temperature 0.5)",
    "hsq-wider": "D = 512, twice the width",
    "hsq-always-pairs": "`pair_mix` in every step",
    "temperature-2": "softer gates (temperature 2)",
    "expert-dropout-0.2": "a fifth of the experts dropped in each step",
    "hsq-independent-start": "experts initialised independently",
    "hsq-longer": "16 epochs instead of 8",
}
# The same body with other experts: none, plain layers, hybrid sharing.
BODIES = {"HSQ's": ("hsq-baseline", "hsq-linear", "hsq"), "Query2Label's": ("q2l", None, "q2l-hybrid")}
STARTS = {  # a row as it is, and with the start of the library's earlier versions
    "hsq-linear": ("the experts' scale", "hsq-linear-independent", "nn.Linear's, 2.4 times smaller"),
    "q2l": ("Xavier, as in its code", "q2l-torch-init", "torch's"),
    "ml-decoder-k20": ("Xavier, as in its code", "ml-decoder-k20-linear-init", "nn.Linear's"),
}
NOT_TRIED = ("row", "seed", "seconds", "mAP")  # the other columns of a trial are its settings
# <!-- study: NAME --> … <!-- end -->: what stands between is written by this script
SECTION = re.compile(r"(?P<start><!-- study: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def results(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def summary() -> dict[str, dict[str, Any]]:
    """The rows of the test table by name."""
    return {row["row"]: row for row in results("voc-study")["summary"]}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_spread(row: dict[str, Any], name: str = "mAP", digits: int = 2) -> str:
    """A mean, and the standard deviation if there are several seeds."""
    spread = row.get(f"{name}_sd")
    return f"{row[name]:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def cost(row: dict[str, Any]) -> list[str]:
    """Parameters and multiply-adds of the head in millions, and the minutes of the fastest seed."""
    fastest = min(run["seconds"] for run in results("voc-study")["runs"] if run["row"] == row["row"])
    return [f"{row['head_parameters'] / 1e6:.2f}", f"{row['head_macs'] / 1e6:.1f}", f"{fastest / 60:.1f}"]


def heads_table() -> str:
    """The main table: each head with the settings chosen on val."""
    found = summary()
    probe = found["gap"]["mAP"]
    rows = []
    for name in MAIN:
        row = found[name]
        rows.append([f"`{name}`", str(row["seeds"]), with_spread(row), f"{row['mAP'] - probe:+.2f}", *cost(row)])
    return table(
        ["head", "seeds", "test mAP", "against `gap`", "M parameters", "M multiply-adds", "minutes to train"], rows
    )


def more_table() -> str:
    """What more pixels and fine-tuning are worth."""
    found = summary()
    return table(
        ["row", "seeds", "test mAP", "minutes to train"],
        [[f"`{name}`", str(found[name]["seeds"]), with_spread(found[name]), cost(found[name])[-1]] for name in MORE],
    )


def pair_mix_table() -> str:
    """Validation mAP with and without pair_mix, at each head's two learning rates."""
    trials: dict[tuple[str, float], dict[float, float]] = {}
    for row in results("voc-tuning")["summary"]:
        if "optimizer.lr" in row and "pair_mix" in row:
            trials.setdefault((row["row"], row["optimizer.lr"]), {})[row["pair_mix"]] = row["mAP"]
    return table(
        ["head", "learning rate", "without", "`pair_mix: 0.5`", "gain"],
        [
            [f"`{head}`", f"{rate:g}", f"{scores[0.0]:.2f}", f"{scores[0.5]:.2f}", f"{scores[0.5] - scores[0.0]:+.2f}"]
            for (head, rate), scores in sorted(trials.items())
        ],
    )


def variations_table() -> str:
    """Validation mAP of variations of HSQ, the best first."""
    tuned = results("voc-tuning")["summary"]
    scores = {row["row"]: row["mAP"] for row in tuned if row["row"] in VARIATIONS}
    scores |= {row["trial"]: row["val_mAP"][-1] for row in results("hsq-freedoms")["runs"]}
    base = max(row["mAP"] for row in tuned if row["row"] == "hsq")
    rows = [
        [VARIATIONS[name], f"{score:.2f}", f"{score - base:+.2f}"]
        for name, score in sorted(scores.items(), key=lambda item: -item[1])
    ]
    return table(["variation of `hsq`", "mAP on val", f"against {base:.2f}"], rows)


def crops_table() -> str:
    """Validation mAP with three random crops of each image in the cache."""
    rows = results("voc-crops")["runs"]
    return table(
        ["head", "training steps", "mAP on val"],
        [[f"`{row['row']}`", f"{row['steps']}x", f"{row['val_mAP'][-1]:.2f}"] for row in rows],
    )


def trials_table() -> str:
    """Every trial, the best of each head first."""
    rows = []
    for row in results("voc-tuning")["summary"]:
        tried = {key.rsplit(".", 1)[-1]: value for key, value in row.items() if key not in NOT_TRIED}
        settings = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in tried.items()
        )
        rows.append([row["row"], settings, f"{row['mAP']:.2f}"])
    return table(["head", "tried", "mAP on val"], rows)


def test_table() -> str:
    """Every row, the best first."""
    rows = [
        [
            row["row"],
            str(row["seeds"]),
            *(with_spread(row, name) for name in ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")),
            *cost(row),
        ]
        for row in sorted(summary().values(), key=lambda row: -row["mAP"])
    ]
    header = ["row", "seeds", "mAP", "CF1", "OF1", "top-3 CF1", "top-3 OF1"]
    return table([*header, "M parameters", "M multiply-adds", "minutes"], rows)


def experts_table() -> str:
    """mAP by the numbers of shared and of own experts; the row `hsq` is 16 x 1."""
    found = summary()
    found["hsq-s16-t1"] = found["hsq"]
    own = (0, 1, 2)
    rows = []
    for shared in (0, 1, 4, 16, 32):
        cells = [found.get(f"hsq-s{shared}-t{n}") for n in own]
        rows.append([str(shared), *(with_spread(cell) if cell else "" for cell in cells)])
    runs = results("voc-study")["runs"]
    scores = {n: [run["mAP"] for run in runs if own_experts(run["row"]) == n] for n in own}
    rows.append(["all", *(mean_of_runs(scores[n]) for n in own)])
    with_own = scores[1] + scores[2]
    pooled = f"With one or two own experts: {mean_of_runs(with_own)}. All: {mean_of_runs(scores[0] + with_own)}."
    return table(["shared experts", *(f"{n} own" for n in own)], rows) + f"\n\n{pooled}"


def control_table() -> str:
    """mAP of one body with different experts."""
    found = summary()
    rows = [
        [body, *(with_spread(found[name]) + f" ({found[name]['seeds']})" if name else "" for name in names)]
        for body, names in BODIES.items()
    ]
    return table(["transformer", "no experts", "plain layers", "hybrid sharing"], rows)


def starts_table() -> str:
    """mAP of heads with two starts each."""
    found = summary()
    rows = [
        [f"`{name}`", f"{now}: {with_spread(found[name])}", f"{then}: {with_spread(found[other])}"]
        for name, (now, other, then) in STARTS.items()
    ]
    return table(["head", "now", "before"], rows)


def own_experts(row: str) -> int | None:
    """n_t of a row of the grid."""
    match = re.fullmatch(r"hsq-s\d+-t(\d)", "hsq-s16-t1" if row == "hsq" else row)
    return int(match[1]) if match else None


def mean_of_runs(scores: list[float]) -> str:
    return f"{mean(scores):.2f} ± {stdev(scores):.2f} ({len(scores)} runs)"


def labels_table() -> str:
    """AP of each label, mean over the seeds; the best head of each label in bold."""
    runs = results("voc-study")["runs"]
    rows = []
    above = dict.fromkeys(HEADS_BY_LABEL, 0)  # labels for which the first head has a higher mean than this one
    for label in runs[0]["AP"]:
        means = [mean(run["AP"][label] for run in runs if run["row"] == head) for head in HEADS_BY_LABEL]
        for head, value in zip(HEADS_BY_LABEL, means, strict=True):
            above[head] += means[0] > value
        rows.append([label, *(f"**{value:.1f}**" if value == max(means) else f"{value:.1f}" for value in means)])
    rows.append([f"labels where {HEADS_BY_LABEL[0]} is higher", "", *(str(above[head]) for head in HEADS_BY_LABEL[1:])])
    return table(["label", *HEADS_BY_LABEL], rows)


TABLES = {
    "heads": heads_table,
    "more": more_table,
    "pair-mix": pair_mix_table,
    "variations": variations_table,
    "crops": crops_table,
    "trials": trials_table,
    "test": test_table,
    "experts": experts_table,
    "control": control_table,
    "starts": starts_table,
    "labels": labels_table,
}


def filled(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """A page with what these functions write in its sections."""
    return SECTION.sub(lambda match: f"{match['start']}\n{sections[match['name']]()}\n\n{match['end']}", text)


def with_results(text: str) -> str:
    """The page with the tables of the results."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
