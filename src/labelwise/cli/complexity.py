"""`labelwise complexity`: what a model costs, before it is trained."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from labelwise.cli.options import parse_options


def complexity(
    *,
    head: str = "hsq",
    backbone: str = "resnet50",
    size: int | None = None,
    labels: int = 80,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Count the parameters and multiply-adds of a model for one image, part by part.

    Parameters
    ----------
    head
        Name of the head (labelwise heads lists them).
    backbone
        Name of the timm backbone (labelwise backbones lists them).
    size
        Side of the square input in pixels; without it, the backbone's own.
    labels
        Number of labels.
    set_
        An option of the head as OPTION=VALUE; may be repeated.
    as_json
        Print the counts as JSON instead of a table.
    """
    from labelwise.complexity import measure_complexity
    from labelwise.model import create_model

    model = create_model(backbone, head, labels, weights="none", size=size, **parse_options(set_ or []))
    counts = measure_complexity(model).as_dict()
    counts = {"head": head, "backbone": backbone, "size": model.config.preprocessing.size, "labels": labels, **counts}
    if as_json:
        Console().print_json(json.dumps(counts))
        return
    table = Table(
        "part",
        title=f"{head} on {backbone}, {counts['size']} x {counts['size']}, {labels} labels",
        caption="multiply-adds of one image; 1 multiply-add = 2 FLOPs",
    )
    for column in ("parameters (M)", "multiply-adds (G)", "without attention's products (G)"):
        table.add_column(column, justify="right")
    for name, part in [*counts["parts"].items(), ("total", counts)]:
        if name == "total":
            table.add_section()
        table.add_row(
            name,
            f"{part['parameters'] / 1e6:.3f}",
            f"{part['macs'] / 1e9:.3f}",
            f"{part['macs_without_attention'] / 1e9:.3f}",
        )
    Console().print(table)
