"""Recipes: what a person writes in YAML, checked in every detail before anything is run or paid for."""

from __future__ import annotations

from finetune.recipe.load import load_recipe, load_recipes, parse_recipe
from finetune.recipe.params import RunParam, apply_params, run_params
from finetune.recipe.recipe import Recipe

__all__ = ["Recipe", "RunParam", "apply_params", "load_recipe", "load_recipes", "parse_recipe", "run_params"]
