"""`--grid key=a,b,c`: which settings a sweep tries, and readable names for the runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import yaml

from labelwise.errors import LabelwiseError

# What `labelwise train` calls --head, --size ... is here called the same.
_SHORT = {
    "head": "model.head",
    "backbone": "model.backbone",
    "size": "model.size",
    "freeze": "model.freeze",
    "loss": "loss.name",
    "lr": "optimizer.lr",
}


def full_key(key: str) -> str:
    """A recipe's dotted key from its short form.

    >>> full_key("lr"), full_key("head.shared_experts"), full_key("optimizer.clip_norm")
    ('optimizer.lr', 'model.options.shared_experts', 'optimizer.clip_norm')
    """
    return _SHORT.get(key, key.replace("head.", "model.options.", 1) if key.startswith("head.") else key)


def parse_grid(settings: Iterable[str]) -> dict[str, list[Any]]:
    """Keys as typed, with the values to try, read as YAML.

    >>> parse_grid(["head=hsq,gap", "head.widths=[64,16],[32]", "seed=0,1"])
    {'head': ['hsq', 'gap'], 'head.widths': [[64, 16], [32]], 'seed': [0, 1]}
    """
    grid: dict[str, list[Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not (key and equals and text.strip()):
            raise LabelwiseError(f"--grid {setting!r}: write it as KEY=VALUE,VALUE, for example --grid seed=0,1,2")
        if full_key(key) in map(full_key, grid):
            raise LabelwiseError(f"--grid {setting!r}: {key!r} is given twice; put all its values into one --grid")
        try:
            values = yaml.safe_load(f"[{text}]")
        except yaml.YAMLError:
            raise LabelwiseError(f"--grid {setting!r}: cannot read the values {text!r}") from None
        if any(value in values[:place] for place, value in enumerate(values)):
            raise LabelwiseError(f"--grid {setting!r}: a value is there twice; leave one out")
        grid[key] = values
    if not grid:
        raise LabelwiseError("say what to try, for example: --grid head=gap,hsq --grid seed=0,1,2")
    return grid


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value per key; the last key changes fastest.

    >>> combinations({"head": ["hsq", "gap"], "seed": [0, 1]})[1:3]
    [{'head': 'hsq', 'seed': 1}, {'head': 'gap', 'seed': 0}]
    """
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def run_name(settings: Mapping[str, Any]) -> str:
    """A folder's name that says what is in it.

    >>> run_name({"head": "hsq", "head.shared_experts": 4, "head.widths": [64, 16], "lr": "1e-3"})
    'head-hsq_shared_experts-4_widths-64x16_lr-1e-3'
    """
    return "_".join(f"{_plain(key.rpartition('.')[2])}-{_plain(value)}" for key, value in settings.items())


def _plain(value: Any) -> str:
    """Letters that no shell and no file system minds."""
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-" if not re.fullmatch(r"\w+", text) else "_", text).strip("-") or "none"
