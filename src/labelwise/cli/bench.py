"""`labelwise bench`: the speed and memory of a model on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import labelwise as lw
from labelwise.cli.common import BatchSize, Flag, JsonFile, Model, NotNegative, Repeated, described_by, say
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.core.tables import TerminalTable
from labelwise.core.terminal import open_console


@described_by("api.cost:bench")
def bench(
    model: Model = None,
    /,
    *,
    photos: Path | None = None,
    images: Annotated[int, NotNegative] = 100,
    batch_size: BatchSize = 16,
    seconds: Annotated[float, NotNegative] = 5.0,
    compile: Flag = False,
    exported: Annotated[tuple[Path, ...], Repeated] = (),
    memory: bool = True,
    json_file: JsonFile = None,
) -> None:
    """Measure a model on this machine: every engine that is installed, in turns, in one run.

    Comparisons with other implementations: make bench, from a checkout.
    """
    options = {name: value for name, value in locals().items() if name != "json_file"}
    from labelwise.analysis.speed import COLUMNS

    if json_file:
        check_replaceable(json_file)
    result = lw.bench(**options)
    if json_file:
        atomic_write(json_file, json.dumps(result.to_dict(), indent=1) + "\n")
    settings = result.settings
    say(f"{settings['model']}, {settings['size']} pixels, batches of {batch_size}")
    open_console(highlight=False).print(TerminalTable(list(COLUMNS.values()), result.cells()))
    for engine, reason in result.left_out.items():
        say(f"left out: {engine} ({reason})")
    say(f"{result.machine['processor']}, {result.machine['cores']} cores, {result.machine['threads']} threads")
