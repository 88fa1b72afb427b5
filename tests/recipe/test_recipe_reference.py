"""``docs/recipes.md`` says what the schema says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from finetune import settings
from finetune.recipe import patterns
from finetune.recipe.recipe import Recipe
from finetune.recipe.reference import PAGE, is_current, render_page
from finetune.recipe.walk import walk_fields


def test_the_reference_is_up_to_date() -> None:
    assert is_current(PAGE), "stale: python -m finetune.recipe.reference > docs/recipes.md"


def test_every_field_has_a_description_and_a_place_on_the_page() -> None:
    page = render_page()
    for path, field in walk_fields(Recipe):
        assert field.description, path
        assert f"| `{path[-1]}`" in page, path


def test_every_pattern_has_words_that_explain_it() -> None:
    used = {
        limit.pattern
        for _, field in walk_fields(Recipe)
        for limit in field.metadata
        if hasattr(limit, "pattern")
    }
    assert used == set(patterns.WORDS)


def test_a_stale_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "recipes.md"
    assert not is_current(page)
    page.write_text(render_page() + "more\n")
    assert not is_current(page)
    page.write_text(render_page())
    assert is_current(page)


def test_reading_recipes_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from finetune.recipe import load_recipes; "
        f"load_recipes(Path({str(settings.INCLUDE_DIR / 'recipes')!r})); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(settings.INCLUDE_DIR)},
    )
    heavy = {
        "airflow",
        "croniter",
        "fsspec",
        "google",
        "huggingface_hub",
        "jax",
        "numpy",
        "pandas",
        "pyarrow",
        "torch",
    }
    assert heavy & set(result.stdout.split()) == set()
