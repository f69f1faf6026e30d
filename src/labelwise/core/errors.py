"""One exception for everything a user can fix, and the words that help to fix it."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path

_COMPARED = 10_000  # names: less than a second
_LISTED = 200  # names: a table may have a million
_NO_MEMORY = ("out of memory", "not enough memory", "allocate memory", "create a memory", "bad_alloc", "ALLOC_FAILED")


class LabelwiseError(Exception):
    """A mistake the user can fix, told in one line that names the fix. The command line prints it and exits 2.

    Args:
        message: What is wrong and what to do, without any command-line flag.
        options: Keyword arguments that fix it. Python users read them as such, the command line as flags; a key with a
            dot is a setting of the recipe.
        either: Each of the options fixes it; otherwise all of them together do.

    >>> error = LabelwiseError("'a.jpg' is truncated; replace it or skip it", options={"on_bad_image": "skip"})
    >>> str(error)
    "'a.jpg' is truncated; replace it or skip it (on_bad_image='skip')"
    >>> error.for_command_line()
    "'a.jpg' is truncated; replace it or skip it (--on-bad-image skip)"
    """

    def __init__(self, message: str, *, options: Mapping[str, object] | None = None, either: bool = False) -> None:
        super().__init__(message)  # all that a copy in another process needs; the rest is in __dict__
        self.message, self.options, self.either = message, dict(options or {}), either

    def __str__(self) -> str:
        told = _told.get()
        if told is not None:
            return told(self)
        return self._with(lambda name, value: f"{name}={'…' if value is ... else repr(value)}", ", ")

    def for_command_line(self, renamed: Mapping[str, str] | None = None, flags: Collection[str] | None = None) -> str:
        """The same line with the options as flags.

        Args:
            renamed: Flags that have another name than their keyword argument. A name with a ? is an option of the data,
                which stands behind its path.
            flags: The flags of a command that also has `--set`, which is used for all other options.

        >>> LabelwiseError("averaged weights cannot be sharded", options={"ema": 0}).for_command_line(flags=["lr"])
        'averaged weights cannot be sharded (--set ema=0)'
        """

        def render(name: str, value: object) -> str:
            name = (renamed or {}).get(name, name)
            return _as_flag(name, value, setting=flags is not None and name not in flags)

        return self._with(render, " ")

    def _with(self, render: Callable[[str, object], str], between: str) -> str:
        if not self.options:
            return self.message
        between = " or " if self.either else between
        return f"{self.message} ({between.join(render(name, value) for name, value in self.options.items())})"


_told: ContextVar[Callable[[LabelwiseError], str] | None] = ContextVar("told", default=None)


@contextmanager
def errors_told_by(words: Callable[[LabelwiseError], str]) -> Iterator[None]:
    """Inside the block, `str` of an error is what `words` makes of it: on the command line, options are flags."""
    token = _told.set(words)
    try:
        yield
    finally:
        _told.reset(token)


def _as_flag(name: str, value: object, setting: bool = False) -> str:
    """
    >>> _as_flag("on_bad_image", "skip"), _as_flag("overwrite", True), _as_flag("head.groups", 20)
    ('--on-bad-image skip', '--overwrite', '--set head.groups=20')
    >>> _as_flag("photos.csv?duplicates", "merge")
    "'photos.csv?duplicates=merge'"
    """
    text = "…" if value is ... else str(value)
    if "?" in name:
        return f"'{name}={text}'"
    if setting or "." in name:
        return f"--set {name}={text}"
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {text}"


def unknown_name(
    kind: str, name: str, valid: Iterable[str], where: str = "", *, meant: str | None = None, option: str | None = None
) -> LabelwiseError:
    """An error for a misspelt name: proposes the one that was `meant`, else the nearest, and lists them all.

    `where` it was looked for; the `option` that takes it is shown with the proposed name, else the last one.

    >>> str(unknown_name("head", "hsqq", ["gap", "hsq"]))
    "unknown head 'hsqq'; did you mean 'hsq'? (gap, hsq)"
    >>> str(unknown_name("split", "tets", ["train", "test"], "photos.csv"))
    "photos.csv: unknown split 'tets'; did you mean 'test'? (train, test)"
    """
    choices = list(valid)
    near = meant or next(iter(get_close_matches(name, choices[:_COMPARED], n=1)), None)
    listed = shortened(choices, _LISTED)
    guess = f"choose one of {listed}" if near is None else f"did you mean {near!r}? ({listed})"
    fix = {option: near or choices[-1]} if option is not None else None
    return LabelwiseError(f"{where}{': ' if where else ''}unknown {kind} {name!r}; {guess}", options=fix)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def described(value: object) -> str:
    """What somebody passed, for an error message: its beginning and its type.

    >>> described(7), described([1.5] * 99)
    ('7 (int)', '[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, ...] (list)')
    """
    return f"{' '.join(reprlib.repr(value).split())} ({type(value).__name__})"


def nearest_path(path: str | Path) -> Path | None:
    """For a path that leads nowhere: the nearest name in its folder, or itself in the folder whose name is nearest.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> (folder / "b.jpg").touch(), (folder / "photos.csv").touch()
    (None, None)
    >>> nearest_path(folder / "photo.csv").name, nearest_path(folder / "nope.jpg")
    ('photos.csv', None)
    """
    folder, name = Path(path).parent, Path(path).name
    if folder.is_dir():
        # Endings are often the same, so they do not count; of files with the same stem, one with the same ending wins.
        same_ending_last = sorted(os.listdir(folder), key=lambda other: Path(other).suffix == Path(name).suffix)
        names = {Path(other).stem: other for other in same_ending_last if other != name}  # itself: a dangling link
        near = get_close_matches(Path(name).stem, names, n=1)
        return folder / names[near[0]] if near else None
    if not folder.parent.is_dir():
        return None
    folders = get_close_matches(folder.name, os.listdir(folder.parent), n=3)
    return next((found for near in folders if (found := folder.parent / near / name).exists()), None)


def did_you_mean(path: str | Path) -> str:
    """`nearest_path` as the end of an error message."""
    near = nearest_path(path)
    return f"; did you mean {str(near)!r}?" if near else ""


def shortened(names: Sequence[str], most: int = 5) -> str:
    """
    >>> shortened(["a", "b"]), shortened(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def counted(count: int, one: str, many: str = "") -> str:
    """
    >>> counted(1, "image"), counted(3, "image"), counted(1200, "image is", "images are")
    ('1 image', '3 images', '1,200 images are')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises RuntimeError from its allocators, from oneDNN and from C++ alike.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory.")), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _NO_MEMORY)
    return isinstance(error, MemoryError)


_TRAINING = ("torch", "torchvision", "timm", "lightning_fabric", "safetensors")  # packages of the extra `train`


def missing_torch(error: ImportError) -> LabelwiseError | None:
    """An error for what only works with PyTorch, if a package of the extra `train` is what could not be imported.

    >>> str(missing_torch(ModuleNotFoundError("No module named 'torch'", name="torch")))
    "this needs PyTorch; install it with: pip install 'labelwise[train]'"
    """
    if (error.name or "").partition(".")[0] not in _TRAINING:
        return None
    return LabelwiseError("this needs PyTorch; install it with: pip install 'labelwise[train]'")


@contextmanager
def torch_needed() -> Iterator[None]:
    """Around imports that need PyTorch: without it, the error says what to install."""
    try:
        yield
    except ImportError as error:
        raise missing_torch(error) or error from None


# Called with one line about what was assumed; the command line prints it. In Python, results carry their notes.
listeners: list[Callable[[str], None]] = []


def tell(note: str) -> None:
    for listener in listeners:
        listener(note)


def missing_extra(package: str, extra: str) -> LabelwiseError:
    """An error for an optional dependency that is not installed.

    >>> str(missing_extra("onnxruntime", "onnx"))
    "this needs the package 'onnxruntime'; install it with: pip install 'labelwise[onnx]'"
    """
    return LabelwiseError(f"this needs the package {package!r}; install it with: pip install 'labelwise[{extra}]'")
