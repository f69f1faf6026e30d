"""What `lw.data` offers: documented, light, and named apart from its modules."""

import inspect as introspection
import re
import sys
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.data import __all__ as names


@pytest.mark.parametrize("name", [name for name in names if introspection.isfunction(getattr(lw.data, name))])
def test_functions_are_documented_with_arguments_and_an_example(name: str) -> None:
    function = getattr(lw.data, name)
    text = introspection.getdoc(function) or ""
    assert ">>>" in text
    arguments = introspection.signature(function).parameters
    assert not arguments or "Args:" in text
    for argument in arguments:
        assert re.search(rf"    (\*\*)?{argument}: ", text), argument


def test_the_room_imports_no_pytorch() -> None:
    package = Path(lw.data.__file__).parent
    for file in (*package.rglob("*.py"), *(package.parent / "core").rglob("*.py")):
        code = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (torch|timm)\b", code, re.MULTILINE), file


def test_names_are_sorted_and_no_function_hides_a_module() -> None:
    assert names == sorted(names)
    for name in names:
        if introspection.isfunction(getattr(lw.data, name)):
            assert f"labelwise.data.{name}" not in sys.modules
