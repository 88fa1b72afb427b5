"""The fields that a person may change for one run."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.errors import RecipeError
from finetune.recipe import apply_params, run_params
from tests.recipe.recipes import problem_lines, recipe_with


def test_params_have_the_recipes_values_as_defaults() -> None:
    params = run_params(recipe_with({"trainer.steps": 77, "trainer.learning_rate": 1e-3}))
    assert {name: param.default for name, param in params.items()} == {
        "steps": 77,
        "per_device_batch_size": 1,
        "max_target_length": 1024,
        "learning_rate": 1e-3,
        "checkpoint_period": 500,
        "seed": 0,
        "min_heldout_improvement": 0.0,
    }


def test_params_carry_the_schemas_types_limits_and_words() -> None:
    params = run_params(recipe_with())
    assert params["steps"].keywords == {"type": "integer", "minimum": 1}
    assert params["learning_rate"].keywords == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert params["min_heldout_improvement"].keywords == {"type": ["number", "null"], "minimum": 0}
    assert params["steps"].path == ("trainer", "steps")
    schema = params["steps"].schema()
    assert (schema["title"], schema["section"]) == ("Steps", "Training")
    assert schema["description"].startswith("Training steps")


def test_the_params_of_a_run_change_its_recipe_only() -> None:
    recipe = recipe_with()
    changed = apply_params(recipe, {"steps": 3, "learning_rate": 1, "min_heldout_improvement": None})
    assert (changed.trainer.steps, changed.trainer.learning_rate) == (3, 1.0)
    assert changed.checks.min_heldout_improvement is None
    assert recipe.trainer.steps == 10
    assert changed.digest() != recipe.digest()


def test_the_defaults_change_nothing() -> None:
    recipe = recipe_with(
        {"dataset.source": {"files": ["a.jsonl"]}, "trainer.options": {"mesh_axes": ["data"]}}
    )
    assert apply_params(recipe, {name: param.default for name, param in run_params(recipe).items()}) == recipe
    assert apply_params(recipe, {}) == recipe


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"steps": 0}, "trainer.steps: given 0; must be at least 1"),
        ({"steps": "5"}, "trainer.steps: given '5'; must be a whole number"),
        ({"steps": None}, "trainer.steps: given null; must be a whole number"),
        ({"learning_rate": 7}, "trainer.learning_rate: given 7; must be at most 1"),
        ({"stepps": 5}, "stepps: is no parameter of a run. Did you mean `steps`? Parameters: steps, "),
        ({"name": "x"}, "name: is no parameter of a run."),
    ],
)
def test_a_wrong_param_is_explained(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        apply_params(recipe_with(), params)
    (problem,) = problem_lines(caught.value)
    assert words in problem
    assert "do not fit the recipe small" in str(caught.value)
