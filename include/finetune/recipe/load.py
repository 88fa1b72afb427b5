"""Read recipes from files, and say everything that is wrong with one at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finetune.errors import RecipeError
from finetune.recipe.base import Problem
from finetune.recipe.explain import explain_error
from finetune.recipe.recipe import Recipe
from finetune.recipe.suggest import show_value
from finetune.recipe.yaml_text import YamlProblem, YamlText, read_yaml

SUFFIXES = (".yaml", ".yml")
_PLAIN_KEY = re.compile(r"[\w.-]{1,60}$")


def load_recipe(path: Path) -> Recipe:
    """Return the recipe of a file.

    Raises:
        RecipeError: With every problem of the file, one a line: its line, field, value, and what is allowed.
    """
    path = Path(path).absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"There is no recipe file {path}.", resource=str(path)) from error
    except UnicodeDecodeError as error:
        raise _error(path, [f"is not UTF-8 text (byte {error.start})"]) from error
    except OSError as error:
        raise RecipeError(
            f"The recipe file {path} cannot be read: {error.strerror}.", resource=str(path)
        ) from error
    return parse_recipe(text, path)


def parse_recipe(text: str, path: Path) -> Recipe:
    """Return the recipe that a file's text holds; ``path`` is named in errors and resolves relative paths."""
    try:
        document = read_yaml(text)
    except YamlProblem as problem:
        where = f"line {problem.line}" if problem.line else ""
        where += f", column {problem.column}" if problem.column else ""
        raise _error(path, [f"{where}: {problem.message}" if where else problem.message]) from problem
    data = document.data
    if data is None:
        raise _error(path, ["is empty; a recipe needs name, model, dataset, trainer and machines"])
    if not isinstance(data, dict):
        raise _error(path, [f"holds a {type(data).__name__}; a recipe is a mapping (key: value lines)"])
    recipe = build_recipe(
        data, path.parent, lambda problems: _error(path, [_line(p, document) for p in problems])
    )
    if recipe.name != path.stem or path.suffix not in SUFFIXES:
        message = (
            f"given {show_value(recipe.name)}, but the file is {path.name}; rename the file to"
            f" {recipe.name}.yaml, or the recipe"
        )
        raise _error(path, [_line(Problem(("name",), message), document)])
    return recipe


def build_recipe(
    data: Mapping[Any, Any], folder: Path | None, make_error: Callable[[list[Problem]], RecipeError]
) -> Recipe:
    """Return the recipe of already parsed data; problems are turned into an error by ``make_error``."""
    trainer = data.get("trainer")
    version = trainer.get("version", "0.2.5") if isinstance(trainer, dict) else None
    known = version if version in ("0.2.2", "0.2.5") else None
    try:
        return Recipe.model_validate(dict(data), context={"folder": folder, "trainer_version": known})
    except ValidationError as error:
        raise make_error(explain_error(error, Recipe, data)) from error


def load_recipes(folder: Path) -> dict[Path, Recipe | RecipeError]:
    """Return the recipe or the error of every recipe file of a folder: a broken one never hides the others.

    Raises:
        RecipeError: Where there is no such folder.
    """
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise RecipeError(f"There is no folder of recipes {folder}.", resource=str(folder))
    loaded: dict[Path, Recipe | RecipeError] = {}
    first_by_name: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and not p.name.startswith(".")):
        try:
            recipe = load_recipe(path)
        except RecipeError as error:
            loaded[path] = error
            continue
        first = first_by_name.setdefault(recipe.name, path)
        loaded[path] = (
            recipe
            if first == path
            else _error(path, [f"name: {show_value(recipe.name)} is taken by {first.name}"])
        )
    return loaded


def _line(problem: Problem, document: YamlText) -> str:
    line = document.find_line(problem.path)
    where = f"line {line}: " if line else ""
    return f"{where}{format_path(problem.path)}{problem.message}"


def format_path(path: tuple[str | int, ...]) -> str:
    """Return a path as ``trainer.steps: `` or ``dataset.source.files[0]: ``, empty for the whole recipe."""
    text = ""
    for step in path:
        text += (
            f"[{step}]"
            if isinstance(step, int)
            else f".{step if _PLAIN_KEY.match(step) else show_value(step)}"
        )
    return f"{text.lstrip('.')}: " if text else ""


def _error(path: Path, problems: list[str]) -> RecipeError:
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return RecipeError(
        f"{path.name} has {count}:{listed}",
        resource=str(path),
        next_step=f"Correct the file, then: python -m finetune validate {path}",
    )
