"""Whatever stands in a recipe, reading it ends with a recipe or with an error in words."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune import settings
from finetune.errors import RecipeError
from finetune.recipe import parse_recipe

JUNK: list[Any] = [
    None, True, False, 0, -1, 10**30, 1.5, float("inf"), float("nan"), "", "x", "${UNSET}", "${UNSET:-y}", "a/b", "\n",
    "é", [], [None], ["a", "a"], [[1]], [{"kind": "local"}], {}, {"kind": "local"}, {"kind": None}, {"kind": ["x"]},
    {"": 1}, {1: 2}, {None: 1}, {True: {"a": []}}, {"hub": "a/b", "kind": "cloud-tpu"}, "x" * 3000,
]  # fmt: skip
SEEDS = range(40)
CHANGES_PER_SEED = 10


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key below a node."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from places(value)


def spoil(data: Any, choose: random.Random) -> None:
    """Replace, remove or add something somewhere."""
    container, key = choose.choice(list(places(data)))
    action = choose.randrange(3)
    if action == 0:
        container[key] = copy.deepcopy(choose.choice(JUNK))
    elif action == 1 and isinstance(container, dict):
        del container[key]
    elif isinstance(container, dict):
        container[choose.choice(["kind", "steps", "hub", "files", "stepz", 7, None, "options"])] = (
            copy.deepcopy(choose.choice(JUNK))
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_any_text_ends_in_a_recipe_or_an_error_in_words(seed: int) -> None:
    choose = random.Random(seed)
    for path in sorted((settings.INCLUDE_DIR / "recipes").glob("*.yaml")):
        original = yaml.safe_load(path.read_text())
        for _ in range(CHANGES_PER_SEED):
            data = copy.deepcopy(original)
            for _ in range(choose.randint(1, 3)):
                spoil(data, choose)
            try:
                parse_recipe(
                    yaml.safe_dump(data, sort_keys=False, allow_unicode=True), Path(f"/recipes/{path.name}")
                )
            except RecipeError as error:
                lines = error.cause.splitlines()
                assert lines[0].startswith(path.name)
                assert lines[1:]
                assert all(line.startswith("  - ") and len(line) < 2500 for line in lines[1:])


@pytest.mark.parametrize("seed", SEEDS)
def test_any_spoiled_bytes_end_in_a_recipe_or_an_error_in_words(seed: int) -> None:
    choose = random.Random(seed)
    text = (settings.INCLUDE_DIR / "recipes" / "tiny-local.yaml").read_text()
    for _ in range(CHANGES_PER_SEED):
        characters = list(text)
        for _ in range(choose.randint(1, 5)):
            characters[choose.randrange(len(characters))] = choose.choice("\t\n:-[]{}&*!|>'\"%@`#, \x07aé0")
        try:
            parse_recipe("".join(characters), Path("/recipes/tiny-local.yaml"))
        except RecipeError as error:
            assert "tiny-local.yaml has" in str(error)
