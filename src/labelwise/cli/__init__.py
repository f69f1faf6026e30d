"""The `labelwise` command. Each subcommand lives in its own module and is a thin call of the function of the same name
in `labelwise`. It is imported only when it is called, so that `labelwise --help` does not wait for PyTorch."""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from shlex import quote

from cyclopts import App, CycloptsError, Group, MissingArgumentError, UnusedCliTokensError

from labelwise.core.errors import LabelwiseError, errors_told_by, is_out_of_memory, listeners, missing_torch
from labelwise.core.terminal import say, visible


def package_version() -> str:
    from importlib.metadata import version  # not above: it takes as long as all of the command line

    return version("labelwise")


app = App(
    name="labelwise",
    help="Multi-label image classification: every label that applies, how sure it is, and where it looked.",
    version=package_version,
    help_format="plaintext",  # of the overview; see `main`
)

# Group, then command and what it does, in the order of `labelwise --help`.
COMMANDS: dict[str, dict[str, str]] = {
    "Use a model": {
        "predict": "Label images with a model.",
        "untag": "Remove what labelwise wrote into sidecars.",
        "explain": "Show where a model looked, label by label.",
        "serve": "Serve models over HTTP, with a drag-and-drop web page.",
        "demo": "Run an end-to-end demo on synthetic images.",
    },
    "Train and measure": {
        "train": "Train a model on your images, or from a recipe.",
        "evaluate": "Measure a model on a dataset.",
        "report": "Write a page about one run, or a comparison of several.",
        "sweep": "Train a grid of settings and compare the results.",
    },
    "Deploy": {
        "export": "Convert a model to ONNX, OpenVINO or torch.export, also in INT8.",
        "push": "Upload a model to the hub, with a model card.",
    },
    "Data": {"data": "Inspect, split, convert or download a dataset, or create the sample set."},
    "Look up": {
        "bench": "Measure a model's speed and memory on this machine.",
        "heads": "List the heads, or show every option of one.",
        "backbones": "List the backbones that match a pattern.",
        "complexity": "Count the parameters and multiply-adds of a model.",
        "cache": "Show how large the cache is, or empty it.",
    },
}
# The examples that errors show for copying, with all that a command needs.
EXAMPLES = {
    "report": "labelwise report runs/first --out report",
    "sweep": "labelwise sweep --data photos.csv --grid seed=0,1,2 --out sweeps/seeds",
    "export": "labelwise export runs/first --out first-onnx",
    "push": "labelwise push runs/first ann/pets",
    "data inspect": "labelwise data inspect photos.csv",
    "data split": "labelwise data split photos.csv --out splits.csv",
    "data convert": "labelwise data convert photos.csv --to coco --out photos-coco",
    "data download": "labelwise data download voc2007",
    "data sample": "labelwise data sample --out sample",
}
_MODULES = {"data": "data:app"} | {name: f"info:{name}" for name in ("heads", "backbones", "complexity", "cache")}
for _number, (_title, _commands) in enumerate(COMMANDS.items()):
    _group = Group(_title, sort_key=_number)
    for _row, (_name, _help) in enumerate(_commands.items()):
        _path = f"labelwise.cli.{_MODULES.get(_name, f'{_name}:{_name}')}"
        app.command(_path, name=_name, help=_help, group=_group, sort_key=_row)
_options = app["--help"].group = app["--version"].group = Group("Options", sort_key=len(COMMANDS))
app.command(
    "labelwise.cli.info:install_completion",
    name="--install-completion",
    help="Let the shell complete commands, flags and files.",
    group=_options,
)

# Keyword arguments whose flag has another name.
_FLAGS = {
    "attention_head": "head",
    "conventions": "as",
    "evaluations": "evaluation",
    "pairs": "pair",
    "api_key": "api_key_file",
    **{
        name: f"photos.csv?{name}"
        for name in ("check_files", "duplicates", "encoding", "ignore_columns", "images_folder", "key_column")
    },
}


class _Announcer:
    """Finds no module, but says when PyTorch is imported, which takes seconds."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            print("loading PyTorch …", file=sys.stderr, flush=True)  # noqa: T201


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake becomes one line on stderr and exit status 2, never a traceback."""
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's; twice that limit is an error
    atexit.register(_leave_garbage)
    words = sys.argv[1:] if arguments is None else arguments
    if sys.stderr.isatty() and _Announcer not in sys.meta_path:
        sys.meta_path.insert(0, _Announcer)
    if not listeners and os.environ.get("RANK", "0") == "0":  # of several training processes, one tells
        listeners.append(_note)
    try:
        commands = [name for group in COMMANDS.values() for name in group if name != "data"]
        if {"--help", "-h"} & set(words) and words[0] in ["data", *commands]:
            app.help_format = "markdown"  # joins the lines of a docstring; takes a while to import
            if words[0] != "data":
                app[words[0]].help = None  # not the line of the overview: all that the command's docstring says
        with errors_told_by(lambda error: error.for_command_line(_FLAGS, _known_flags(words))):
            app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = " ".join(error.command_chain or ())
        if isinstance(error, MissingArgumentError):
            said = _missing(error, command)
        elif isinstance(error, UnusedCliTokensError):
            said = _left_over(error.unused_tokens or [], command)
        else:
            said = " ".join(str(error).split())
        _fail(f"{said} See: {f'labelwise {command}'.strip()} --help")
    except LabelwiseError as error:
        _fail(error.for_command_line(_FLAGS, _known_flags(words)))
    except ModuleNotFoundError as error:
        missing = missing_torch(error)
        if missing is None:
            raise
        _fail(str(missing))
    except BrokenPipeError:  # `labelwise … | head` closed our output: not a mistake
        sys.stderr.close()
    except OSError as error:  # a path that is missing, forbidden, of the wrong kind, or on a full disk
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(
            f"not enough memory ({str(error).splitlines()[0] if str(error) else 'for Python'}): use smaller batches "
            "(--batch-size; in training, --set accumulate=2 keeps the result), smaller images (--size) or fewer "
            "processes (--workers)"
        )
    except KeyboardInterrupt:
        say("interrupted", stderr=True)
        raise SystemExit(130) from None


def _leave_garbage() -> None:
    """Look for no garbage at exit in all that was imported: that is an eighth of the time of `predict`."""
    if "torch" not in sys.modules:  # Triton, which comes with it, reports what it finds there as leaks
        gc.freeze()


# The option that a word without one was probably meant for.
_MEANT_FOR = dict.fromkeys(("train", "evaluate", "report", "sweep"), "--data") | {"explain": "--out"}


def _left_over(words: Sequence[str], command: str) -> str:
    """
    >>> _left_over(["photos.csv"], "train")
    "unexpected argument 'photos.csv'; did you mean --data photos.csv?"
    """
    several, option = len(words) > 1, _MEANT_FOR.get(command)
    shown = f"unexpected argument{'s' * several} {', '.join(map(repr, words))}"
    return f"{shown}; did you mean {option} {quote(words[0])}?" if option and not several else f"{shown}."


def _note(text: str) -> None:
    """A line about what was assumed, on stderr, once: a command may open a table several times."""
    if text not in _noted:
        _noted.add(text)
        say(f"note: {text}", stderr=True)


_noted: set[str] = set()


def _missing(error: MissingArgumentError, command: str) -> str:
    assert error.argument is not None
    if error.keyword is not None or command not in EXAMPLES:
        return f"{error.keyword or error.argument.name} needs a value."
    return f"{error.argument.name} is missing, for example: {EXAMPLES[command]}."


def _known_flags(words: list[str]) -> Collection[str] | None:
    """The flags of a command that takes recipe settings; any other setting is changed with --set. None: no such."""
    if words[:1] not in (["train"], ["sweep"]):
        return None
    command = app[words[0]].default_command
    return None if command is None else inspect.signature(command).parameters


def _fail(message: str) -> None:
    say(visible(f"error: {message}"), stderr=True)
    raise SystemExit(2)
