"""What is uploaded to the hub for a run: its model, with the recipe and evaluations on the card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from labelwise.core.errors import LabelwiseError
from labelwise.model.card import Measured, in_evaluation
from labelwise.model.upload import check_name, prepare_upload
from labelwise.runtime.run_files import HISTORY
from labelwise.training.run import Run


def prepare(
    source: str | Path, folder: str | Path, name: str, *, license: str | None = None, evaluations: Sequence[Path] = ()
) -> Path:
    """Write what `lw.push` uploads into a folder: a model folder with a full card.

    Args:
        source: A run folder or a model folder.
        folder: The folder to write.
        name: The hub repository, owner/name.
        license: The model's licence as the hub writes it, for example apache-2.0.
        evaluations: JSON files of evaluations. Those in the run folder that are newer than its training are found
            without being named.
    """
    check_name(name)
    run = Run(source)
    training = None if run.recipe is None else run.recipe.model_dump(mode="json")
    measured = _measured(run, evaluations)
    return prepare_upload(run.model_folder, Path(folder), name, license=license, training=training, measured=measured)


def _measured(run: Run, evaluations: Sequence[Path]) -> list[Measured]:
    named = [in_evaluation(_read(file), run.config, str(file)) for file in evaluations]
    known = {(one.data, one.split) for one in named}
    return named + [one for one in _found(run) if (one.data, one.split) not in known]


def _found(run: Run) -> Iterator[Measured]:
    """The evaluations in the run folder, without other JSON files and without evaluations of an earlier training."""
    if run.folder is None:
        return
    trained = run.folder / HISTORY
    since = trained.stat().st_mtime if trained.is_file() else 0.0
    for file in sorted(run.folder.glob("*.json")):
        try:
            if file.stat().st_mtime >= since:
                yield in_evaluation(_read(file), run.config, str(file))
        except LabelwiseError:
            continue


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise LabelwiseError(f"{str(file)!r} is not JSON; name the JSON file of an evaluation") from None
