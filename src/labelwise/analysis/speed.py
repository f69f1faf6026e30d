"""How fast a model is on this machine: every engine that is installed, in turns, in one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import ShowProgress, progress_of
from labelwise.core.tables import html_table, to_frame
from labelwise.engines.choose import open_engine
from labelwise.engines.load import load, require_network
from labelwise.engines.measure import in_turns, machine, memory_peak
from labelwise.model.model import LabelModel
from labelwise.model.network import TorchEngine
from labelwise.runtime import sessions
from labelwise.runtime.exported import find_export
from labelwise.runtime.sessions import relative_difference
from labelwise.runtime.tagger import Tagger

if TYPE_CHECKING:
    import pandas

    from labelwise.runtime.sessions import Family

EAGER, OPTIMISED, COMPILED = "torch", "torch, optimised", "torch, compiled"
COLUMNS = {
    "engine": "engine",
    "network": "network (images/s)",
    "end_to_end": "end to end (images/s)",
    "memory_mb": "peak memory (MB)",
    "difference": "largest difference of logits",
}
_PEAK = "from labelwise.analysis.speed import print_peak; print_peak()"  # what the child process runs


@dataclass(frozen=True, repr=False)
class Benchmark:
    """Speed and memory of one model on one machine.

    Attributes:
        rows: One per engine: images/s of the network and end to end, peak memory in MB, and the largest difference of
            its logits from those of the first row, relative to the largest logit.
        left_out: Engines that could not be measured, and why.
        settings: What was measured.
        machine: The processor, its cores and the versions of the packages.
    """

    rows: list[dict[str, Any]]
    left_out: dict[str, str]
    settings: dict[str, Any]
    machine: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "left_out": self.left_out, "settings": self.settings, "machine": self.machine}

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with one row per engine."""
        return to_frame(self.rows, "engine")

    def cells(self) -> list[list[str]]:
        """The rows as text, in the order of `COLUMNS`."""
        styles = {"engine": "", "network": ".1f", "end_to_end": ".1f", "memory_mb": ",.0f", "difference": ".0e"}
        return [
            ["-" if row[name] is None else format(row[name], style) for name, style in styles.items()]
            for row in self.rows
        ]

    def __repr__(self) -> str:
        lines = [list(COLUMNS.values()), *self.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def _repr_html_(self) -> str:
        return html_table(list(COLUMNS.values()), self.cells())


def measure_speed(
    source: str | Path,
    images: Sequence[str],
    *,
    batch_size: int = 16,
    seconds: float = 5.0,
    compile: bool = False,
    exported: Mapping[str, Path] | None = None,
    memory: bool = True,
    progress: ShowProgress = True,
) -> Benchmark:
    """Measure the model in `source` on every engine; `images` are the files for the end-to-end numbers."""
    taggers, left_out = open_taggers(source, batch_size=batch_size, compile=compile, exported=exported)
    first = next(iter(taggers.values()))
    size = first.config.preprocessing.size
    noise = np.random.default_rng(0).standard_normal((batch_size, 3, size, size), np.float32)
    with progress_of("Measuring", 2 + len(taggers) * memory, progress, unit="files") as advance:
        network = in_turns({name: partial(tagger.logits, noise) for name, tagger in taggers.items()}, seconds=seconds)
        advance()
        passes = {name: _pass(tagger, images, batch_size) for name, tagger in taggers.items()}
        whole = in_turns(passes, seconds=0, rounds=2) if images else {}
        advance()
        peaks: dict[str, float | None] = {}
        for name in taggers if memory else ():
            peaks[name] = peak_memory(source, name, batch_size, exported or {})
            advance()
    expected = first.logits(noise)
    rows = [
        {
            "engine": name,
            "network": 1e3 * batch_size / network[name].best,
            "end_to_end": 1e3 * len(images) / whole[name].best if images else None,
            "memory_mb": peaks.get(name),
            "difference": relative_difference(tagger.logits(noise), expected),
        }
        for name, tagger in taggers.items()
    ]
    settings = {"model": Path(source).name, "batch_size": batch_size, "size": size, "images": len(images)}
    return Benchmark(rows, left_out, settings, machine())


def open_taggers(
    source: str | Path | LabelModel,
    *,
    batch_size: int = 16,
    compile: bool = False,
    exported: Mapping[str, Path] | None = None,
    only: str | None = None,
) -> tuple[dict[str, Tagger], dict[str, str]]:
    """A tagger for every way to run a model, and why others are left out.

    Args:
        source: A model in memory, a run, a model folder, a hub id, or an exported model.
        batch_size: Images per batch, for engines that are prepared for one.
        compile: Also `torch.compile`, which takes a minute or two.
        exported: Exported models to measure beside it, by the name of their row.
        only: The name of one row; all by default.
    """
    ways: dict[str, Callable[[], Tagger]] = {}
    found = None if isinstance(source, LabelModel) else find_export(source)
    if found is not None:
        for family in sessions.FAMILIES[1:]:
            ways[family] = partial(load, str(source), engine=family)
    else:
        model = cache(lambda: source if isinstance(source, LabelModel) else require_network(load(source).model))

        def converted(family: Family) -> Tagger:
            size = model().config.preprocessing.size
            return Tagger(model(), engine=open_engine(family, model(), size=size, batch_size=batch_size))

        ways[EAGER] = lambda: Tagger(model())
        ways[OPTIMISED] = lambda: Tagger(model(), engine=TorchEngine(model().optimize()))
        if compile:
            ways[COMPILED] = lambda: Tagger(model(), engine=TorchEngine(model().optimize(compile=True)))
        for family in sessions.FAMILIES[1:]:
            ways[family] = partial(converted, family)
    for name, folder in (exported or {}).items():
        if find_export(folder) is None:
            raise LabelwiseError(f"{str(folder)!r} is not an exported model; export one first")
        ways[name] = partial(load, folder)
    taggers: dict[str, Tagger] = {}
    left_out: dict[str, str] = {}
    for name, opened in ways.items():
        if only in (None, name):
            try:
                taggers[name] = opened()
            except LabelwiseError as error:
                left_out[name] = str(error)
    if not taggers:
        raise LabelwiseError(f"nothing here can run {str(source)!r}: {next(iter(left_out.values()), 'no engine')}")
    return taggers, left_out


def _pass(tagger: Tagger, images: Sequence[str], batch_size: int) -> Callable[[], None]:
    def run() -> None:
        for _ in tagger.stream(images, batch_size=batch_size, on_bad_image="error"):
            pass

    return run


def peak_memory(source: str | Path, name: str, batch_size: int, exported: Mapping[str, Path]) -> float | None:
    """The most memory, in MB, that a new process takes to load the model and run one batch; None if not known."""
    task = {
        "source": str(source),
        "batch_size": batch_size,
        "compile": name == COMPILED,
        "exported": {key: str(folder) for key, folder in exported.items()},
        "only": name,
    }
    done = subprocess.run([sys.executable, "-c", _PEAK, json.dumps(task)], capture_output=True, text=True, check=False)
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):  # no /proc, or it did not fit
        return None


def print_peak() -> None:
    """The child process of `peak_memory`."""
    task = json.loads(sys.argv[1])
    taggers, _ = open_taggers(**task)
    (tagger,) = taggers.values()
    size = tagger.config.preprocessing.size
    tagger.logits(np.zeros((task["batch_size"], 3, size, size), np.float32))
    peak = memory_peak()
    sys.stdout.write("unknown" if peak is None else f"{peak / 1e6:.1f}")
