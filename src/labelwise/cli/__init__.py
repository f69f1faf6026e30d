"""The `labelwise` command. Each subcommand lives in its own module and is imported only when it is called, so that
`labelwise --help` does not wait for PyTorch."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version

from cyclopts import App, CycloptsError

from labelwise.core.errors import LabelwiseError, is_out_of_memory

app = App(
    name="labelwise",
    help="Multi-label image classification: every label that applies, how sure it is, and where it looked.",
    version=lambda: version("labelwise"),
    help_format="plaintext",
)
app.command("labelwise.cli.train:train", name="train", help="Train a model on your photos, or by a recipe.")
app.command("labelwise.cli.evaluate:evaluate", name="evaluate", help="Measure a model on a dataset.")
app.command("labelwise.cli.predict:predict", name="predict", help="Label photos with a model.")
app.command("labelwise.cli.explain:explain", name="explain", help="Show where a model looked, label by label.")
app.command("labelwise.cli.report:report", name="report", help="One page about a run, or a comparison of several.")
app.command("labelwise.cli.sweep:sweep", name="sweep", help="Train a grid of settings, and compare them.")
app.command(
    "labelwise.cli.export:export", name="export", help="Write a model for another engine: ONNX, OpenVINO, torch."
)
app.command("labelwise.cli.push:push", name="push", help="Upload a model to the hub, with a card about it.")
app.command("labelwise.cli.serve:serve", name="serve", help="Answer over HTTP, with a page to drop photos on.")
app.command("labelwise.cli.demo:demo", name="demo", help="See it all on a drawn sample set, in a few minutes.")
app.command(
    "labelwise.cli.data:app", name="data", help="Inspect, split, convert or fetch a dataset, or make the sample set."
)
app.command("labelwise.cli.info:heads", name="heads", help="List the heads, or show every option of one.")
app.command("labelwise.cli.info:backbones", name="backbones", help="List the backbones that match a pattern.")
app.command("labelwise.cli.info:complexity", name="complexity", help="Count a model's parameters and multiply-adds.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake becomes one line on stderr and exit status 2, never a traceback."""
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's; twice that limit is an error
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(f"{' '.join(str(error).split())} See: labelwise --help")
    except LabelwiseError as error:
        _fail(error.for_command_line())
    except BrokenPipeError:  # `labelwise … | head` closed our output: not a mistake
        sys.stderr.close()
    except OSError as error:  # a path that is missing, forbidden, of the wrong kind, or on a full disk
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(
            f"not enough memory ({str(error).splitlines()[0] if str(error) else 'for Python'}): take smaller batches "
            "(--batch-size; in training, --set accumulate=2 beside it keeps the result), smaller pictures (--size) or "
            "fewer processes (--workers)"
        )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
