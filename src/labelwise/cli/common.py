"""What the commands share: descriptions of common parameters, `--set`, and printing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import docstring_parser
from cyclopts import Parameter, validators
from docstring_parser import DocstringStyle

from labelwise.core.errors import LabelwiseError
from labelwise.core.terminal import say as say

Command = TypeVar("Command", bound=Callable[..., Any])

if TYPE_CHECKING:
    FileName = str
else:
    FileName = str | Path  # arrives as text, as it was typed; the shell completes names of files
AtLeastOne = Parameter(validator=validators.Number(gte=1))
NotNegative = Parameter(validator=validators.Number(gte=0))
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Names = Annotated[list[str], Parameter(negative=())]
Repeated = Parameter(negative=(), show_default=False)

Model = Annotated[
    FileName | None,
    Parameter(help="A run folder, a model folder, an exported model or a hub id. Default: the bundled tagger."),
]
Network = Annotated[
    FileName | None, Parameter(help="A run folder, a model folder or a hub id. Default: the bundled tagger.")
]
Data = Annotated[
    FileName,
    Parameter(help="A dataset: a path (its format is recognised) or format:path, e.g. photos.csv or voc:/data/VOC."),
]
Split = Annotated[
    str | None,
    Parameter(
        help="The images to use: a split, several (train+val), or all. Default: test. If the data has no "
        "splits, those of the run's split.csv; without that, all images."
    ),
]
Engine = Annotated[
    Literal["auto", "torch", "onnxruntime", "openvino"],
    Parameter(
        help="What runs the model. auto: the engine of an exported model; otherwise the fastest one with the same "
        "scores, measured once if there are many images, else torch."
    ),
]
BatchSize = Annotated[int, Parameter(help="Images per batch."), AtLeastOne]
Workers = Annotated[int, Parameter(help="Threads that decode images; 0: one per core."), NotNegative]
OnBadImage = Annotated[
    Literal["error", "skip"], Parameter(help="Stop at an image that cannot be decoded, or skip and list it.")
]
JsonFile = Annotated[Path | None, Parameter("--json", help="Also write the results to this JSON file.")]
Settings = Annotated[
    list[str] | None,
    Parameter(
        "--set",
        negative=(),
        help="Any other setting of the recipe: --set optimizer.weight_decay=0.05 --set head.dim=128.",
    ),
]


# How to read the table that a command is given; every other option stands in its name: photos.csv?duplicates=merge.
_TABLE_FLAGS = {
    "image_column": "The table's column of images. Default: found by its name or content.",
    "label_column": "The table's column of label names. Default: found by its name or content.",
    "separator": "Between label names: a character, or space, tab, comma, semicolon, pipe. Default: found.",
    "root": "The folder that the table's image paths are relative to. Default: the table's own.",
}


def takes_table(command: Command) -> Command:
    """Give a command the flags that say how to read its --data (or --calibration): they become options in that text."""
    signature = inspect.signature(command)
    argument = "data" if "data" in signature.parameters else "calibration"
    flags = {
        name: Annotated[str | None, Parameter(help=text, group="Table", show_default=False)]
        for name, text in _TABLE_FLAGS.items()
    }

    @wraps(command)
    def with_flags(*arguments: Any, **named: Any) -> Any:
        given = {name: named.pop(name) for name in flags if named.get(name) is not None}
        bound = signature.bind(*arguments, **{name: value for name, value in named.items() if name not in flags})
        if given:
            from labelwise.data.sources import with_options

            if bound.arguments.get(argument) is None:
                name = next(iter(given)).replace("_", "-")
                raise LabelwiseError(f"--{name} says how to read a table; name it", options={argument: "photos.csv"})
            bound.arguments[argument] = with_options(bound.arguments[argument], given)
        return command(*bound.args, **bound.kwargs)

    added = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flags[n]) for n in flags]
    with_flags.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {**command.__annotations__, **flags}
    return with_flags  # type: ignore[return-value]


def described_by(*sources: str) -> Callable[[Command], Command]:
    """Take the help of a command's parameters, or of a class of them, from the docstrings of what it calls.

    What the command itself says comes first. The function's source is read, not imported: help must not wait for
    PyTorch.

    Args:
        sources: `module:function` in `labelwise`, or a class whose fields the function takes.
    """
    about = {name: text for source in sources for name, text in _documented(*source.split(":")).items()}

    def describe(command: Command) -> Command:
        parameters = inspect.signature(command).parameters
        own = inspect.getdoc(command) or ""
        said = {parameter.arg_name for parameter in docstring_parser.parse(own, DocstringStyle.NUMPYDOC).params}

        def text(name: str) -> str:
            def flag(word: re.Match[str]) -> str:
                other = word[1] in parameters and word[1] != name
                return f"--{word[1].replace('_', '-')}" if other else word[1]

            return re.sub(r"`([^`]+)`", flag, about[name])

        lines = [own, *([] if said else ["", "Parameters", "----------"])]
        for name in parameters:
            if name in about and name not in said:
                lines.append(f"{name}\n    {text(name)}")
        command.__doc__ = "\n".join(lines)
        return command

    return describe


def _documented(module: str, name: str) -> dict[str, str]:
    """The parameters of a function or class with their descriptions."""
    source = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
    # Every command waits for this, with and without --help. Python's own parser takes ten times as long.
    found = re.search(rf'^(?:def|class) {name}\b.*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{module}:{name} has no docstring"
    documented = docstring_parser.parse(inspect.cleandoc(found[1]), DocstringStyle.GOOGLE).params
    return {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in documented}


def parse_options(pairs: Iterable[str], flags: Collection[str] = ()) -> dict[str, Any]:
    """Values are read as YAML, so numbers, booleans, null and lists come out as such. `flags` cannot be set this way.

    >>> parse_options(["shared_experts=4", "widths=[64, 16]", "dim=null"])
    {'shared_experts': 4, 'widths': [64, 16], 'dim': None}
    """

    options = {}
    for pair in pairs:
        name, value = parse_setting("--set", pair, "OPTION=VALUE, for example --set shared_experts=4")
        if name in flags:
            raise LabelwiseError(f"--set {pair!r}: {name} is not a setting of the recipe; use its flag")
        options[name] = value
    return options


def parse_setting(flag: str, text: str, example: str, *, several: bool = False) -> tuple[str, Any]:
    """The key and the value of KEY=VALUE; `several` values, with commas between them, become a list."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals and (value.strip() or not several)):
        raise LabelwiseError(f"{flag} {text!r}: write it as {example}")
    import yaml

    try:
        return key.strip(), yaml.safe_load(f"[{value}]" if several else value)
    except yaml.YAMLError:
        raise LabelwiseError(f"{flag} {text!r}: cannot read the value{'s' * several} {value!r}") from None


def split_names(text: str | None) -> list[str] | None:
    """
    >>> split_names("harbour, fishing boat,"), split_names(None)
    (['harbour', 'fishing boat'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def note(text: str) -> None:
    """A line about what is going on, on stderr."""
    say(text, stderr=True)


def warn(text: str) -> None:
    say(f"warning: {text}", stderr=True)
