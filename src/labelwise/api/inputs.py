"""What the public functions take as a model and as data: paths, hub ids, or objects in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable

if TYPE_CHECKING:
    from labelwise.model.model import LabelModel
    from labelwise.training.run import Run


def model_path(model: str | Path | Run | None) -> str:
    """The folder or hub id of a model that is not in memory; the bundled tagger's for None."""
    if model is None:
        return str(default_model())
    if isinstance(model, str | Path):
        return str(model)
    folder = getattr(model, "folder", None) or getattr(model, "model_folder", None)  # of a Run
    if folder is None:
        raise LabelwiseError(
            f"a {type(model).__name__} is not a model here; give a run, a model folder or a hub id like 'owner/name'"
        )
    return str(folder)


def open_model(model: str | Path | Run | LabelModel | None) -> LabelModel:
    """The model itself, in evaluation mode; one from disk is put on the GPU if there is one."""
    import torch

    from labelwise.model.model import LabelModel, load_model

    if isinstance(model, LabelModel):
        return model.eval()
    return load_model(model_path(model)).to("cuda" if torch.cuda.is_available() else "cpu")


def open_table(data: str | Path | LabelTable, model: str | Path | Run | LabelModel | None = None) -> LabelTable:
    """A dataset; one without splits gets those that the training of `model` made."""
    from labelwise.training.run import with_splits_of_run

    table = data if isinstance(data, LabelTable) else open_data(data)
    if model is None or hasattr(model, "forward"):
        return table
    return with_splits_of_run(table, model_path(model))
