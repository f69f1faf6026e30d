"""YAML files of plain values: what a file holds is what is written in it, level by level."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_MOST_LEVELS = 20


class _PlainLoader(yaml.SafeLoader):
    """No aliases: one can stand for terabytes, or for itself. No deep nesting: it would end in a RecursionError."""

    levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*name); write the value out")
        if self.levels == _MOST_LEVELS:
            raise ValueError("it is nested too deeply")
        self.levels += 1
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


def read_yaml(path: Path) -> Any:
    """The content of a YAML or JSON file.

    Raises:
        OSError, ValueError: It cannot be read, is not UTF-8, or not plain YAML.
    """
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def yaml_text(values: Mapping[str, Any]) -> str:
    """Values as YAML, in their order.

    >>> yaml_text({"seed": 0, "labels": ["Möwe"]})
    'seed: 0\\nlabels:\\n- Möwe\\n'
    """
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
