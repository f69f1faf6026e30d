"""labelwise: multi-label image classification. Every label that applies to an image, how sure it is, where it looked.

    import labelwise as lw

    lw.load("runs/first").predict("photo.jpg")          # use a model
    run = lw.train("photos.csv", out="runs/first")      # train one
    lw.evaluate(run, "photos.csv", split="test")        # measure it
    lw.create_model("resnet50", "hsq", ["cat", "dog"])  # an nn.Module

Names are imported on first use, so that `import labelwise` (and `labelwise --help`) does not load PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelwise.core import environment  # noqa: F401 (before any library reads its settings)
from labelwise.core.errors import LabelwiseError
from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise import backbones, data, heads, losses, metrics
    from labelwise.api.cache import cache
    from labelwise.api.cost import bench, complexity, estimate
    from labelwise.api.deployment import export, push, serve
    from labelwise.api.evaluation import evaluate, report
    from labelwise.api.explanation import check_explanations, explain, explain_experts
    from labelwise.api.prediction import predict, predict_job, predict_stream
    from labelwise.api.sidecars import untag
    from labelwise.api.training import sweep, train
    from labelwise.engines.load import load
    from labelwise.model.checkpoints import load_checkpoint
    from labelwise.model.model import LabelModel, create_model, load_model
    from labelwise.runtime.tagger import Tagger
    from labelwise.training.run import Run

__all__ = [
    "LabelModel",
    "LabelwiseError",
    "Run",
    "Tagger",
    "backbones",
    "bench",
    "cache",
    "check_explanations",
    "complexity",
    "create_model",
    "data",
    "estimate",
    "evaluate",
    "explain",
    "explain_experts",
    "export",
    "heads",
    "load",
    "load_checkpoint",
    "load_model",
    "losses",
    "metrics",
    "predict",
    "predict_job",
    "predict_stream",
    "push",
    "report",
    "serve",
    "sweep",
    "train",
    "untag",
]

__getattr__ = lazy_imports(__name__, __file__)
