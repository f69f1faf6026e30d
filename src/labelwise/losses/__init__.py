"""Multi-label losses: pure functions of logits [B, N] and targets [B, N], the same as modules, and `create(name)`.

Targets are 1, 0, -1 (unknown) or soft values in [0, 1]. Everything is computed in float32 (float64 for float64 logits).
"""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.lazy import lazy_imports
from labelwise.core.plugins import import_plugins

if TYPE_CHECKING:
    from labelwise.losses.functional import asymmetric, bce, focal, hill, ranking, softmax_cross_entropy, splc, two_way
    from labelwise.losses.modules import (
        BCE,
        CSL,
        EM,
        GPR,
        ROLE,
        SPLC,
        Asymmetric,
        Focal,
        Hill,
        Loss,
        Ranking,
        SoftmaxCrossEntropy,
        TwoWay,
        create,
        list_losses,
        loss_class,
        loss_options,
    )
    from labelwise.losses.partial import em, gpr, role
    from labelwise.losses.selective import csl

__all__ = [
    "BCE",
    "CSL",
    "EM",
    "GPR",
    "ROLE",
    "SPLC",
    "Asymmetric",
    "Focal",
    "Hill",
    "Loss",
    "Ranking",
    "SoftmaxCrossEntropy",
    "TwoWay",
    "asymmetric",
    "bce",
    "check_loss",
    "create",
    "csl",
    "em",
    "focal",
    "gpr",
    "hill",
    "list_losses",
    "loss_class",
    "loss_options",
    "ranking",
    "role",
    "softmax_cross_entropy",
    "splc",
    "two_way",
]

# With what their classes say of them, so that a recipe is checked without PyTorch.
BUILT_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bce", "softmax-cross-entropy", "focal", "asymmetric", "two-way", "ranking", "hill", "splc"), ()),
    "csl": ("uses_unknown",),
    "em": ("remembers", "uses_unknown"),
    "role": ("remembers", "uses_unknown"),
    "gpr": ("uses_unknown",),
}

__getattr__ = lazy_imports(__name__, __file__)


def check_loss(name: str) -> None:
    """Raise an error for a loss that does not exist; without PyTorch, unless a package brings losses of its own.

    Args:
        name: One of `list_losses()`.
    """
    if name in BUILT_IN:
        return
    import_plugins("labelwise.losses")
    modules = sys.modules.get("labelwise.losses.modules")  # where losses are registered
    if modules is None:
        raise unknown_name("loss", name, BUILT_IN)
    modules.loss_options(name)


def read_prior(path: str) -> list[float]:
    """The last column of a CSV file; a first row without a number is a header. No PyTorch: recipes read it."""
    try:
        rows = [row[-1] for row in csv.reader(Path(path).read_text(encoding="utf-8").splitlines()) if row]
        if rows and not _is_number(rows[0]):
            rows = rows[1:]
        return [float(value) for value in rows]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise LabelwiseError(f"prior {path!r} cannot be read: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
