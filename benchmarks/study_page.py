"""Write the tables of docs/study.md from docs/results/voc-tuning.json and docs/results/voc-study.json.

python benchmarks/study_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, RESULTS = DOCS / "study.md", DOCS / "results"
# <!-- study: NAME --> … <!-- end -->: what stands between is written by this script
NOT_TRIED = ("row", "seed", "seconds", "mAP")  # the other columns of a trial are its settings
SECTION = re.compile(r"(?P<start><!-- study: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def tuning_table(summary: list[dict[str, Any]]) -> str:
    """Every trial, the best of each head first."""
    lines = ["| head | tried | mAP on val |", "|---|---|---|"]
    for row in summary:
        tried = {key.rsplit(".", 1)[-1]: value for key, value in row.items() if key not in NOT_TRIED}
        settings = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in tried.items()
        )
        lines.append(f"| {row['row']} | {settings} | {row['mAP']:.2f} |")
    return "\n".join(lines)


def test_table(summary: list[dict[str, Any]]) -> str:
    """Every row, the best first; the spread is the standard deviation over the seeds."""

    def cell(row: dict[str, Any], name: str) -> str:
        spread = row.get(f"{name}_sd")
        return f"{row[name]:.2f}" + ("" if spread is None else f" ± {spread:.2f}")

    lines = [
        "| head | seeds | mAP | CF1 | OF1 | top-3 CF1 | top-3 OF1 | M parameters | M multiply-adds |",
        "|---" * 9 + "|",
    ]
    for row in sorted(summary, key=lambda row: -row["mAP"]):
        scores = [cell(row, name) for name in ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")]
        size = [f"{row[name] / 1e6:.2f}" for name in ("head_parameters", "head_macs")]
        lines.append(f"| {' | '.join([row['row'], str(row['seeds']), *scores, *size])} |")
    return "\n".join(lines)


TABLES = {"voc-tuning": tuning_table, "voc-study": test_table}


def with_results(text: str) -> str:
    """The page with the tables of the results that are there."""

    def section(match: re.Match[str]) -> str:
        file = RESULTS / f"{match['name']}.json"
        if not file.exists():
            return match["start"] + match["end"]
        table = TABLES[match["name"]](json.loads(file.read_text(encoding="utf-8"))["summary"])
        return f"{match['start']}\n{table}\n\n{match['end']}"

    return SECTION.sub(section, text)


if __name__ == "__main__":
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
