"""Going on from a trained model: its weights, and the splits it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelwise.data.run_split import with_splits_of_run
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.model import LabelModel, load_model
from labelwise.model_config import ModelConfig
from labelwise.model_folder import find_folder

_ONLY_IN_TRAINING = {"token_dropout", "query_noise", "random_queries", "dropout", "expert_start", "drop_path"}


def check_start(start: str, folder: Path) -> None:
    """Mistakes that must be found before an old run in `folder` is replaced."""
    if find_folder(start).resolve().is_relative_to(folder.resolve()):
        raise LabelwiseError(f"{start!r} is the run that would be replaced: give the new one another --out")


def take_weights(model: LabelModel, start: str) -> None:
    """All weights of a trained model that computes the same from other weights, for the same labels."""
    trained = load_model(start)
    if trained.labels != model.labels:
        raise LabelwiseError(
            f"{start!r} has other labels than the data, or the same in another order; data.labels and data.unseen in "
            "a recipe choose and order the data's labels"
        )
    theirs, ours = (dict(_facts(one.config)) for one in (trained, model))
    differing = [
        f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in theirs if theirs[name] != ours.get(name)
    ]
    if differing:
        raise LabelwiseError(
            f"{start!r} is not the model that this recipe describes: it has {'; '.join(differing)}. A run brings its "
            "settings along; for a model folder, give them with --head, --backbone, --size and --set"
        )
    model.load_state_dict(trained.state_dict())


def earlier_splits(table: LabelTable, run: Path | None, start: str | None) -> LabelTable | None:
    """Data without splits with those that `run` itself wrote down, or else the run that it started from; None if there
    are none."""
    own = with_splits_of_run(table, run)
    if own.split_names != ("",):
        return own
    if start is None:
        return None
    known = with_splits_of_run(table, Path(start), Path(start).parent)
    if known.split_names == ("",):
        return None
    # What the earlier run did not know is new material to learn from; what it learned from never becomes a test image.
    return known.with_splits([split or "train" for split in known.splits])


def _facts(config: ModelConfig) -> list[tuple[str, Any]]:
    """What decides a model's answers beside its weights, by plain names."""
    facts = [("backbone", config.backbone.name), ("stage", config.backbone.stage), ("task", config.task)]
    facts += [(f"input {name}", value) for name, value in config.preprocessing.model_dump().items()]
    for name, value in config.head.model_dump().items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        facts += [(part, setting) for part, setting in parts if part not in _ONLY_IN_TRAINING]
    return facts
