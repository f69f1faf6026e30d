"""Training: from a recipe and a dataset to a run, which holds the model."""

from typing import TYPE_CHECKING

from labelwise.core.lazy import lazy_imports

if TYPE_CHECKING:
    from labelwise.training.recipe import Recipe, load_recipe, save_recipe
    from labelwise.training.run import Run, open_runs
    from labelwise.training.statistics import cooccurrence

__all__ = ["Recipe", "Run", "cooccurrence", "load_recipe", "open_runs", "save_recipe"]

__getattr__ = lazy_imports(__name__, __file__)
