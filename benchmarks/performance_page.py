"""Write the tables of docs/research/performance.md from benchmarks/results/*.json.

python -m benchmarks.speed all --out benchmarks/results && python -m benchmarks.performance_page
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.speed.report import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "research" / "performance.md", ROOT / "benchmarks" / "results"
# <!-- bench: NAME --> … <!-- end -->: what stands between is written by this script
SECTION = re.compile(r"(?P<start><!-- bench: (?P<name>[a-z]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def with_results(text: str, results: Path) -> str:
    """The page with the tables of the results that are there; the section of one that is not is empty."""

    def section(match: re.Match[str]) -> str:
        file = results / f"{match['name']}.json"
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        table = "\n" + markdown(content) + "\n" if "columns" in content else ""
        return match["start"] + table + match["end"]

    return SECTION.sub(section, text)


if __name__ == "__main__":
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
