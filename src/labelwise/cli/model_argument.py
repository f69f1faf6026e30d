"""Whether the first argument of `predict` and `explain` is a model. If it is a picture, the bundled tagger is meant."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from labelwise.data.readers.base import is_image, walk
from labelwise.errors import LabelwiseError
from labelwise.pictures import kind_of

_CONFIG = "config.json"  # in a model folder and in an exported one; a run folder has it in model/
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_and_rest(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The model, and the arguments behind it; the bundled tagger and all arguments if the first one is no model."""
    if arguments and is_model(arguments[0]):
        return arguments[0], list(arguments[1:])
    from labelwise.bundled import default_model

    return str(default_model()), list(arguments)


def is_model(argument: str) -> bool:
    """True for a run, model or exported folder and for a hub id; False for pictures. What is neither is an error.

    >>> is_model("owner/name"), is_model("s3://bucket/photos"), is_model("shards/{000..099}.tar")
    (True, False, False)
    """
    path = Path(argument)
    if path.is_dir():
        if (path / _CONFIG).is_file() or (path / "model" / _CONFIG).is_file():
            return True
        if _holds_pictures(path):
            return False
        raise LabelwiseError(
            f"the folder {argument!r} is neither a model ({_CONFIG} or model/{_CONFIG} would be in it) nor does it "
            "hold images; name a run folder, a model folder, an exported model or a hub id, or a folder of pictures"
        )
    is_pattern = glob.has_magic(argument) or "{" in argument
    if path.exists() or "://" in argument or is_pattern or kind_of(argument) in ("shard", "parquet"):
        return False  # opening it says what is wrong with it, if anything is
    if is_image(path.name):  # a misspelt picture must not be looked for on the hub
        raise LabelwiseError(f"no such file: {argument!r}")
    if _HUB_ID.fullmatch(argument):
        return True
    raise LabelwiseError(
        f"no such file or folder: {argument!r}; the first argument is a picture, a folder, or a model: a run folder, "
        "a model folder, an exported model or a hub id like 'owner/name'"
    )


def _holds_pictures(folder: Path) -> bool:
    """Some file below can be predicted; the walk ends at the first one."""
    return any(kind_of(name) for _, names in walk(str(folder)) for name in names)
