"""What every benchmark gives: a table, targets that are met or not, JSON, a plot, and the table for a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from labelwise.core.errors import missing_extra
from labelwise.engines.measure import machine

# Options that every benchmark has.
JsonFile = Annotated[Path | None, Parameter(name="--json", help="Also write the numbers to this file.")]
PlotFile = Annotated[
    Path | None, Parameter(name="--plot", help="Also draw them, to a .png or .svg file (extra plots).")
]


class Column(NamedTuple):
    key: str  # of a row
    title: str
    style: str = ""  # as in format(); numbers are aligned to the right


@dataclass(frozen=True)
class Check:
    """A target for a measured number: at least, or at most, a limit."""

    what: str
    value: float
    limit: float
    at_most: bool = False
    unit: str = "x"

    @property
    def holds(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def text(self) -> str:
        """
        >>> Check("HSQ against Algorithm 1", 26.75, 20).text()
        'HSQ against Algorithm 1: 26.75x (target: at least 20x)'
        """
        bound = "at most" if self.at_most else "at least"
        missed = "" if self.holds else ": MISSED"
        return f"{self.what}: {self.value:.2f}{self.unit} (target: {bound} {self.limit:g}{self.unit}){missed}"


@dataclass
class Report:
    name: str
    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine)
    bars: dict[str, str] = field(default_factory=dict)  # what a plot shows: key of a row -> its name in the legend
    unit: str = ""  # of the bars

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        content["columns"] = [column._asdict() for column in self.columns]
        content["checks"] = [{**asdict(check), "holds": check.holds, "text": check.text()} for check in self.checks]
        return content

    def publish(self, json_file: Path | None, plot_file: Path | None) -> None:
        """Print it, and write it where asked."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title=self.title)
        for column in self.columns:
            table.add_column(column.title, justify="right" if column.style else "left")
        for row in self.rows:
            table.add_row(*(cell(row, column) for column in self.columns))
        console = Console()
        if not console.is_terminal:  # a file or a pipe is as wide as it takes
            console = Console(width=200)
        console.print(table)
        for line in [*self.notes, *(check.text() for check in self.checks)]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        if plot_file is not None:
            draw(self, plot_file)


def cell(row: Mapping[str, Any], column: Column) -> str:
    """
    >>> cell({"ratio": 1.234}, Column("ratio", "faster by", ".2fx")), cell({}, Column("ratio", "faster by", ".2f"))
    ('1.23x', '')
    """
    value = row.get(column.key)
    if value is None:
        return ""
    if isinstance(value, str):  # also in a column of numbers: "out of memory"
        return value
    if column.style.endswith("x"):
        return f"{value:{column.style[:-1]}}x"
    return f"{value:{column.style}}"


def markdown(content: Mapping[str, Any]) -> str:
    """A report that was written as JSON, as a section of a page."""
    columns = [Column(**column) for column in content["columns"]]
    about = content["machine"]
    lines = [
        "| " + " | ".join(column.title for column in columns) + " |",
        "|" + "|".join("---:" if column.style else "---" for column in columns) + "|",
        *("| " + " | ".join(cell(row, column) for column in columns) + " |" for row in content["rows"]),
        "",
    ]
    lines += [f"- {line}" for line in [*content["notes"], *(check["text"] for check in content["checks"])]]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"{content['title']}. {about['processor']}, {about['cores']} cores, {about['threads']} threads; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def draw(report: Report, path: Path) -> None:
    """Horizontal bars: a group for each row, a bar for each of `report.bars`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    names = [str(row[report.columns[0].key]) for row in report.rows]
    figure = Figure(figsize=(9, 1.5 + 0.28 * len(names) * len(report.bars)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(report.bars)
    for number, (key, label) in enumerate(report.bars.items()):
        places = [row + number * height for row in range(len(names))]
        values = [row.get(key) or 0.0 for row in report.rows]
        bars = axes.barh(places, values, height=height, label=label)
        axes.bar_label(bars, labels=[f"{value:.3g}" if value else "" for value in values], fontsize=7, padding=2)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel=report.unit, title=report.title)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
