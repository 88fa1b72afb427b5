"""Recipes come from files: one broken file never hides another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from finetune import settings
from finetune.errors import RecipeError
from finetune.recipe import Recipe, load_recipe, load_recipes
from tests.recipe.recipes import V6E, changed, recipe_with

SHIPPED = settings.INCLUDE_DIR / "recipes"


def write(path: Path, **changes: object) -> Path:
    path.write_text(yaml.safe_dump(changed({"name": path.stem, **changes})))
    return path


def test_the_shipped_recipes_are_valid() -> None:
    loaded = load_recipes(SHIPPED)
    assert {path.stem: getattr(recipe, "name", recipe) for path, recipe in loaded.items()} == {
        name: name for name in ("gemma3-270m-chat-local", "gemma3-4b-ultrachat", "tiny-local")
    }


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    good, other = write(tmp_path / "good.yaml"), write(tmp_path / "other.yml")
    broken = write(tmp_path / "broken.yaml", **{"trainer.steps": 0})
    unreadable = tmp_path / "unreadable.yaml"
    unreadable.write_bytes(b"name: \xff\n")
    (tmp_path / "notes.txt").write_text("not a recipe")
    (tmp_path / ".draft.yaml").write_text("not yet")

    loaded = load_recipes(tmp_path)

    assert list(loaded) == [broken, good, other, unreadable]
    assert isinstance(loaded[good], Recipe)
    assert isinstance(loaded[other], Recipe)
    assert "trainer.steps: given 0" in str(loaded[broken])
    assert "is not UTF-8 text" in str(loaded[unreadable])


def test_a_directory_named_like_a_recipe_is_one_error_of_its_own(tmp_path: Path) -> None:
    good = write(tmp_path / "good.yaml")
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    loaded = load_recipes(tmp_path)
    assert isinstance(loaded[good], Recipe)
    assert "cannot be read: Is a directory" in str(loaded[folder])


def test_the_file_must_be_named_like_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    path.write_text(yaml.safe_dump(changed({"name": "small"})))
    with pytest.raises(
        RecipeError, match=r"name: given 'small', but the file is copy\.yaml; rename the file to small"
    ):
        load_recipe(path)


def test_a_name_given_twice_is_an_error_of_the_second_file(tmp_path: Path) -> None:
    first, second = write(tmp_path / "small.yaml"), write(tmp_path / "small.yml")
    loaded = load_recipes(tmp_path)
    assert isinstance(loaded[first], Recipe)
    assert "name: 'small' is taken by small.yaml" in str(loaded[second])


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe file .*/absent.yaml"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match=r"no folder of recipes .*/absent"):
        load_recipes(tmp_path / "absent")


def test_an_error_says_which_file_and_what_to_do_next(tmp_path: Path) -> None:
    path = write(tmp_path / "small.yaml", **{"trainer.steps": 0})
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.resource == str(path)
    assert caught.value.next_step == f"Correct the file, then: python -m finetune validate {path}"


def test_a_recipe_comes_back_whole_from_its_record() -> None:
    for recipe in load_recipes(SHIPPED).values():
        assert isinstance(recipe, Recipe)
        assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
        assert Recipe.model_validate(json.loads(json.dumps(recipe.model_dump(mode="json")))) == recipe


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        recipe_with().trainer.steps = 5  # type: ignore[misc]


def test_the_digest_tells_recipes_apart_and_stays_the_same() -> None:
    digest = recipe_with().digest()
    assert digest == recipe_with({"trainer.learning_rate": 2e-5}).digest()
    assert digest != recipe_with({"trainer.learning_rate": 3e-5}).digest()
    assert len(digest) == 64


def test_an_override_may_replace_what_the_models_own_table_sets() -> None:
    changes = {"model.maxtext_name": "qwen3.5-35b-a3b-fp8", "model.overrides": {"dtype": "float32"}}
    assert recipe_with(changes).model.overrides == {"dtype": "float32"}


def test_one_machine_does_both_roles_unless_there_are_two() -> None:
    alone = recipe_with()
    assert alone.machine_for("cpu") is alone.machine_for("tpu")
    both = recipe_with({"machines.tpu": {**V6E, "max_run_hours": 24}, "machines.cpu": {"kind": "local"}})
    assert both.machine_for("cpu").kind == "local"
    assert both.machine_for("tpu").kind == "compute-engine"


def test_a_store_is_the_recipes_own_or_the_installations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_STORE", "file:///the/default")
    assert recipe_with().store_url() == "file:///the/default"
    assert recipe_with({"store": "/runs/"}).store_url() == "file:///runs"
    assert recipe_with({"store": "file:///runs"}).store_url() == "file:///runs"
    assert recipe_with({"store": "gs://bucket/runs/"}).store_url() == "gs://bucket/runs"
