"""Training: from a recipe and a dataset to a model."""

from labelwise.training.recipe import Recipe, load_recipe, save_recipe

__all__ = ["Recipe", "load_recipe", "save_recipe"]
