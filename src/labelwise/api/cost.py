"""`lw.complexity`: what a model costs, counted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.model.complexity import Complexity
    from labelwise.model.model import LabelModel
    from labelwise.training.run import Run


def complexity(
    model: str | Path | Run | LabelModel | None = None,
    *,
    head: str = "hsq",
    backbone: str = "resnet50",
    size: int | None = None,
    labels: int = 80,
    **head_options: Any,
) -> Complexity:
    """Count the parameters and multiply-adds of a model for one image, part by part.

    Args:
        model: A run, a model folder, a hub id or a model in memory. Default: a new one of the other arguments.
        head: Name of the head (`lw.heads.list_heads()`).
        backbone: Name of the timm backbone.
        size: Side of the square input in pixels. Default: the model's own.
        labels: Number of labels.
        **head_options: Options of the head, e.g. `shared_experts=4`.

    Example:
        >>> import labelwise as lw
        >>> counts = lw.complexity(head="gap", backbone="resnet10t", size=64, labels=5)
        >>> counts.size, counts.parts["linear"].parameters
        (64, 2565)
    """
    from labelwise.api.inputs import open_model
    from labelwise.model.complexity import measure_complexity
    from labelwise.model.model import create_model

    if model is None:
        network = create_model(backbone, head, labels, weights="none", size=size, **head_options)
    elif head_options:
        raise LabelwiseError(f"{next(iter(head_options))!r} is an option of a new model's head; leave out the model")
    else:
        network = open_model(model)
    return measure_complexity(network, size)
