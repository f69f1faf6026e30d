"""Write the tables of docs/research/study.md from docs/results/voc-tuning.json and docs/results/voc-study.json.

python benchmarks/study_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, RESULTS = DOCS / "research" / "study.md", DOCS / "results"
HEADS_BY_LABEL = ("hsq", "q2l", "ml-decoder-k20", "transformer-decoder", "csra", "gap")
NOT_TRIED = ("row", "seed", "seconds", "mAP")  # the other columns of a trial are its settings
# <!-- study: NAME --> … <!-- end -->: what stands between is written by this script
SECTION = re.compile(r"(?P<start><!-- study: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def tuning_table(result: dict[str, Any]) -> str:
    """Every trial, the best of each head first."""
    lines = ["| head | tried | mAP on val |", "|---|---|---|"]
    for row in result["summary"]:
        tried = {key.rsplit(".", 1)[-1]: value for key, value in row.items() if key not in NOT_TRIED}
        settings = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in tried.items()
        )
        lines.append(f"| {row['row']} | {settings} | {row['mAP']:.2f} |")
    return "\n".join(lines)


def test_table(result: dict[str, Any]) -> str:
    """Every row, the best first."""
    lines = [
        "| head | seeds | mAP | CF1 | OF1 | top-3 CF1 | top-3 OF1 | M parameters | M multiply-adds | minutes |",
        "|---" * 10 + "|",
    ]
    for row in sorted(result["summary"], key=lambda row: -row["mAP"]):
        scores = [with_spread(row, name) for name in ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")]
        size = [f"{row[name] / 1e6:.2f}" for name in ("head_parameters", "head_macs")]
        fastest = min(run["seconds"] for run in result["runs"] if run["row"] == row["row"])
        lines.append(f"| {' | '.join([row['row'], str(row['seeds']), *scores, *size, f'{fastest / 60:.1f}'])} |")
    return "\n".join(lines)


def grid_table(result: dict[str, Any]) -> str:
    """mAP by the numbers of shared and of own experts; the row `hsq` is 16 x 1."""
    found = {row["row"]: row for row in result["summary"]}
    found["hsq-s16-t1"] = found["hsq"]
    own = (0, 1, 2)
    lines = ["| shared experts | " + " | ".join(f"{n} own" for n in own) + " |", "|---" * (1 + len(own)) + "|"]
    for shared in (0, 1, 4, 16, 32):
        rows = [found.get(f"hsq-s{shared}-t{n}") for n in own]
        lines.append(f"| {shared} | {' | '.join(with_spread(row, 'mAP') if row else 'none' for row in rows)} |")
    scores = {n: [run["mAP"] for run in result["runs"] if own_experts(run["row"]) == n] for n in own}
    lines.append(f"| all | {' | '.join(mean_of_runs(scores[n]) for n in own)} |")
    with_own = scores[1] + scores[2]
    every = scores[0] + with_own
    return "\n".join([*lines, "", f"With one or two own: {mean_of_runs(with_own)}. All: {mean_of_runs(every)}."])


def own_experts(row: str) -> int | None:
    """n_t of a row of the grid."""
    match = re.fullmatch(r"hsq-s\d+-t(\d)", "hsq-s16-t1" if row == "hsq" else row)
    return int(match[1]) if match else None


def mean_of_runs(scores: list[float]) -> str:
    return f"{mean(scores):.2f} ± {stdev(scores):.2f} ({len(scores)} runs)"


def label_table(result: dict[str, Any]) -> str:
    """AP of each label, mean over the seeds; the best head of each label in bold."""
    labels = list(result["runs"][0]["AP"])
    lines = ["| label | " + " | ".join(HEADS_BY_LABEL) + " |", "|---" * (1 + len(HEADS_BY_LABEL)) + "|"]
    above = dict.fromkeys(HEADS_BY_LABEL, 0)  # labels in which the first head has more than this one
    for label in labels:
        means = [mean(run["AP"][label] for run in result["runs"] if run["row"] == head) for head in HEADS_BY_LABEL]
        for head, value in zip(HEADS_BY_LABEL, means, strict=True):
            above[head] += means[0] > value
        cells = [f"**{value:.1f}**" if value == max(means) else f"{value:.1f}" for value in means]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    counts = [str(above[head]) for head in HEADS_BY_LABEL[1:]]
    lines.append(f"| labels in which {HEADS_BY_LABEL[0]} is above | | {' | '.join(counts)} |")
    return "\n".join(lines)


def with_spread(row: dict[str, Any], name: str) -> str:
    """A mean, and the standard deviation if there are several seeds."""
    spread = row.get(f"{name}_sd")
    return f"{row[name]:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


TABLES = {  # by the name on the page: where the numbers are, and who lays them out
    "trials": ("voc-tuning.json", tuning_table),
    "test": ("voc-study.json", test_table),
    "experts": ("voc-study.json", grid_table),
    "labels": ("voc-study.json", label_table),
}


def with_results(text: str) -> str:
    """The page with the tables of the results."""

    def section(match: re.Match[str]) -> str:
        file, table = TABLES[match["name"]]
        result = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        return f"{match['start']}\n{table(result)}\n\n{match['end']}"

    return SECTION.sub(section, text)


if __name__ == "__main__":
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
