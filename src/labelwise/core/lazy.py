"""Packages whose names are imported on first use, so that importing one of their modules does not load PyTorch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from labelwise.core.errors import torch_needed


def lazy_imports(package: str, file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: what its `if TYPE_CHECKING:` block lists is imported when it is asked for.

    `dir` of the package shows its `__all__` only, and so does the completion of a notebook.

    A name must not be that of a module in the package: importing the module would take its place.

    Args:
        package: The package's `__name__`.
        file: Its `__file__`.

    Example:
        if TYPE_CHECKING:
            from labelwise.heads.base import Head

        __getattr__ = lazy_imports(__name__, __file__)
    """
    module: Any = sys.modules[package]
    homes: dict[str, str] = {}
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom):
                    homes |= {alias.name: str(line.module) for alias in line.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with torch_needed():
            if homes[name] == package:
                return import_module(f"{package}.{name}")
            value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)  # the next time it is there at once
        return value

    module.__dir__ = lambda: sorted(module.__all__)
    return find
