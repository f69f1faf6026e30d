"""One exception for everything a user can fix, and the words that help to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_NO_MEMORY = ("out of memory", "not enough memory", "allocate memory", "create a memory", "bad_alloc", "ALLOC_FAILED")


class LabelwiseError(Exception):
    """A mistake the user can fix, told in one line that names the fix. The command line prints it and exits 2."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> LabelwiseError:
    """An error for a misspelt name: proposes the nearest valid one and lists them all.

    >>> str(unknown_name("head", "hsqq", ["gap", "hsq"]))
    "unknown head 'hsqq'; did you mean 'hsq'? (gap, hsq)"
    """
    choices = list(valid)
    near = get_close_matches(name, choices, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return LabelwiseError(f"unknown {kind} {name!r}; {guess}({', '.join(choices)})")


def shortened(names: Sequence[str], most: int = 5) -> str:
    """
    >>> shortened(["a", "b"]), shortened(list("abcdefg"))
    ('a, b', 'a, b, c, d, e, …')
    """
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises RuntimeError from its allocators, from oneDNN and from C++ alike.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory.")), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _NO_MEMORY)
    return isinstance(error, MemoryError)


def missing_extra(package: str, extra: str) -> LabelwiseError:
    """An error for an optional dependency that is not installed.

    >>> str(missing_extra("onnxruntime", "onnx"))
    "this needs the package 'onnxruntime'; install it with: pip install 'labelwise[onnx]'"
    """
    return LabelwiseError(f"this needs the package {package!r}; install it with: pip install 'labelwise[{extra}]'")
