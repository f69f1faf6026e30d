"""Options that every benchmark has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

JsonFile = Annotated[Path | None, Parameter(name="--json", help="Also write the numbers to this file.")]
PlotFile = Annotated[
    Path | None, Parameter(name="--plot", help="Also draw them, to a .png or .svg file (extra plots).")
]
