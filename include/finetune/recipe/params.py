"""The fields of a recipe that a person may change for one run."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo

from finetune.errors import RecipeError
from finetune.recipe.base import Problem
from finetune.recipe.load import build_recipe
from finetune.recipe.recipe import Recipe
from finetune.recipe.suggest import did_you_mean
from finetune.recipe.walk import walk_fields

JsonType = Literal["integer", "number", "boolean", "string"]

_JSON_TYPES: Mapping[type, JsonType] = {int: "integer", float: "number", bool: "boolean", str: "string"}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


@dataclass(frozen=True)
class RunParam:
    """One field of a trigger form.

    Args:
        name: The parameter's name, which is the field's.
        path: The field's path in the recipe.
        section: The group of the form that it is shown in.
        default: The recipe's own value.
        keywords: The JSON-schema keywords ``type``, ``minimum``, ``exclusiveMaximum``, ``enum``, ...
    """

    name: str
    path: tuple[str, ...]
    title: str
    description: str
    section: str
    default: int | float | bool | str | None
    keywords: Mapping[str, Any]

    def schema(self) -> dict[str, Any]:
        """Return a form field's JSON-schema keywords, with title, description and section."""
        return {
            "title": self.title,
            "description": self.description,
            "section": self.section,
            **self.keywords,
        }


def run_params(recipe: Recipe) -> dict[str, RunParam]:
    """Return the parameters of a recipe's run by name, with the recipe's values as defaults."""
    return {
        path[-1]: RunParam(
            name=path[-1],
            path=path,
            title=field.title or path[-1],
            description=field.description or "",
            section=_section(field),
            default=_read(recipe, path),
            keywords=_keywords(field),
        )
        for path, field in _marked_fields()
    }


def apply_params(recipe: Recipe, params: Mapping[str, object]) -> Recipe:
    """Return the recipe with some parameters changed, validated again.

    Raises:
        RecipeError: For a parameter that does not exist, or a value that is not allowed.
    """
    paths = {path[-1]: path for path, _ in _marked_fields()}
    unknown = [
        Problem(
            (name,), f"is no parameter of a run.{did_you_mean(name, paths)} Parameters: {', '.join(paths)}"
        )
        for name in params
        if name not in paths
    ]
    if unknown:
        raise _error(recipe, unknown)
    data = recipe.model_dump(mode="json")
    for name, value in params.items():
        target = data
        for step in paths[name][:-1]:
            target = target[step]
        target[paths[name][-1]] = value
    return build_recipe(data, Path("/"), lambda problems: _error(recipe, problems))


def _error(recipe: Recipe, problems: list[Problem]) -> RecipeError:
    lines = "".join(f"\n  - {'.'.join(map(str, problem.path))}: {problem.message}" for problem in problems)
    return RecipeError(
        f"The run's parameters do not fit the recipe {recipe.name}:{lines}",
        resource=recipe.name,
        next_step="Trigger the run again with other values.",
    )


@cache
def _marked_fields() -> tuple[tuple[tuple[str, ...], FieldInfo], ...]:
    """Return the fields marked with ``run_param`` in the schema."""
    return tuple((path, field) for path, field in walk_fields(Recipe) if _section(field))


def _section(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("run_param", "")) if isinstance(extra, dict) else ""


def _keywords(field: FieldInfo) -> dict[str, Any]:
    """Return a plain field's JSON-schema keywords, from its type and limits."""
    annotation: Any = field.annotation
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    names: list[str] = [_JSON_TYPES[member] for member in members if member is not type(None)]
    if type(None) in members:
        names.append("null")
    keywords: dict[str, Any] = {"type": names[0] if len(names) == 1 else names}
    for limit in field.metadata:
        for attribute, keyword in _LIMITS.items():
            if hasattr(limit, attribute):
                keywords[keyword] = getattr(limit, attribute)
    return keywords


def _read(recipe: Recipe, path: tuple[str, ...]) -> Any:
    value: Any = recipe
    for step in path:
        value = getattr(value, step)
    return value
