"""What the public functions take as a model and as data: paths, hub ids, or objects in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError, described, torch_needed, unknown_name
from labelwise.runtime.folder import find_folder, network_folder

if TYPE_CHECKING:
    import pandas

    from labelwise.data.stream_table import AnyTable
    from labelwise.data.table import LabelTable
    from labelwise.model.model import LabelModel
    from labelwise.training.run import Run

    Data: TypeAlias = str | Path | LabelTable | pandas.DataFrame  # a dataset: what `open_data` takes, or a table


def model_path(model: str | os.PathLike[str] | None) -> str:
    """The folder or hub id of a model that is not in memory; the bundled tagger's for None."""
    if model is None:
        return str(default_model())
    if isinstance(model, str | os.PathLike):  # a Run is one, too
        return os.fspath(model)
    raise LabelwiseError(
        f"{described(model)} is not a model here; give a run, a model folder or a hub id like 'owner/name'"
    )


def open_model(model: str | Path | Run | LabelModel | None) -> LabelModel:
    """The model itself, in evaluation mode; one from disk is put on the GPU if there is one."""
    if model is not None and not isinstance(model, str | os.PathLike):
        return model.eval()
    from labelwise.model.folder import read_config

    folder = network_folder(find_folder(model_path(model)))
    read_config(folder)  # a mistake in the name is told before PyTorch is loaded
    with torch_needed():
        from labelwise.engines.load import on_fastest_device
        from labelwise.model.model import load_model
    return on_fastest_device(load_model(folder))


def check_reader_options(given: Iterable[str], function: Callable[..., Any]) -> None:
    """Refuse an argument that no reader has: most likely it is a misspelt one of the `function` itself."""
    from labelwise.data.readers.base import list_formats
    from labelwise.data.stream_sources import StreamOptions

    known = {name for format in list_formats() for name in format.options.model_fields} | {*StreamOptions.model_fields}
    for name in given:
        if name not in known:
            raise unknown_name("option", name, sorted(known | {*signature(function).parameters} - {"reader"}))


def open_any_table(data: Data, model: object = None, **reader: Any) -> AnyTable:
    """As `open_table`, or shards, whose samples are read as they are needed."""
    from labelwise.data.sources import open_images
    from labelwise.data.table import LabelTable

    if not isinstance(data, str | Path):
        return open_table(data, model, **reader)
    table = open_images(data, **reader)
    return open_table(table, model) if isinstance(table, LabelTable) else table


def open_table(data: Data, model: object = None, **reader: Any) -> LabelTable:
    """A dataset; one without splits gets those that the training of `model` made, if that is on disk."""
    from labelwise.data.sources import as_table
    from labelwise.training.run import with_splits_of_run

    table = as_table(data, **reader)
    return with_splits_of_run(table, os.fspath(model)) if isinstance(model, str | os.PathLike) else table


def model_name(model: object) -> str:
    """What results call a model."""
    if model is None:
        return "the bundled tagger"
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(getattr(model, "folder", None) or type(model).__name__)  # an exported model has a folder


def require_choice(**choices: tuple[str | None, object]) -> None:
    """An error for the first value that its `Literal` type does not list.

    >>> from typing import Literal
    >>> require_choice(method=("atention", Literal["attention", "grad-cam"]))
    Traceback (most recent call last):
    labelwise.core.errors.LabelwiseError: unknown method 'atention'; did you mean 'attention'? (attention, grad-cam)
    """
    for name, (value, literal) in choices.items():
        if value is not None and value not in get_args(literal):
            raise unknown_name(name, value, get_args(literal))


def require(**numbers: tuple[float | None, float]) -> None:
    """An error for the first number that is below its minimum.

    >>> require(top=(None, 1), workers=(-1, 0))
    Traceback (most recent call last):
    labelwise.core.errors.LabelwiseError: workers must be 0 or more, not -1
    """
    for name, (value, minimum) in numbers.items():
        if value is not None and value < minimum:
            raise LabelwiseError(f"{name} must be {minimum} or more, not {value}")
