"""A small valid recipe, and ways to spoil it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finetune.errors import RecipeError
from finetune.recipe import Recipe, parse_recipe

REMOVED = object()

MINIMAL: dict[str, Any] = {
    "name": "small",
    "model": {"maxtext_name": "gemma3-4b", "source": {"bundled": "tiny"}},
    "dataset": {"source": {"bundled": "chatterbot"}},
    "trainer": {"kind": "maxtext-sft", "steps": 10},
    "machines": {"tpu": {"kind": "local"}},
}

V6E: dict[str, Any] = {
    "kind": "compute-engine",
    "project": "my-project",
    "zones": ["us-east5-b"],
    "machine_type": "ct6e-standard-8t",
}

CLOUD_TPU: dict[str, Any] = {
    "kind": "cloud-tpu",
    "project": "my-project",
    "zones": ["us-east5-b"],
    "accelerator_type": "v6e-8",
}


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the minimal recipe's data with dotted paths set to values, or removed."""
    data = copy.deepcopy(MINIMAL)
    for path, value in changes.items():
        *parents, last = path.split(".")
        section = data
        for name in parents:
            section = section.setdefault(name, {})
        if value is REMOVED:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    return data


def recipe_with(changes: Mapping[str, Any] | None = None, folder: Path = Path("/recipes")) -> Recipe:
    """Return the minimal recipe with changes."""
    data = changed(changes or {})
    return parse_recipe(yaml.safe_dump(data, sort_keys=False), folder / f"{data['name']}.yaml")


def problems_of(changes: Mapping[str, Any], folder: Path = Path("/recipes")) -> list[str]:
    """Return the problems that the minimal recipe has after some changes, without their line numbers."""
    try:
        recipe_with(changes, folder)
    except RecipeError as error:
        return problem_lines(error)
    raise AssertionError("the recipe was taken for a good one")


def problem_lines(error: RecipeError) -> list[str]:
    """Return an error's problems, one each, without their line numbers."""
    lines = [line.removeprefix("  - ") for line in error.cause.splitlines() if line.startswith("  - ")]
    return [line.partition(": ")[2] if line.startswith("line ") else line for line in lines]
