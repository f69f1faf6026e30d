"""Multi-label losses: pure functions of logits [B, N] and targets [B, N], the same as modules, and `create(name)`.

Targets are 1, 0, -1 (unknown) or soft values in [0, 1]. Everything is computed in float32 (float64 for float64 logits).
"""

from labelwise.losses.functional import asymmetric, bce, focal, hill, ranking, softmax_cross_entropy, splc, two_way
from labelwise.losses.modules import (
    BCE,
    CSL,
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
    loss_options,
)
from labelwise.losses.selective import csl

__all__ = [
    "BCE",
    "CSL",
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
    "create",
    "csl",
    "focal",
    "hill",
    "list_losses",
    "loss_options",
    "ranking",
    "softmax_cross_entropy",
    "splc",
    "two_way",
]
