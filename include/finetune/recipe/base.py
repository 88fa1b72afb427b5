"""What every section of a recipe shares: strictness, and the few kinds of text that need a look."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from finetune.recipe.suggest import show_value

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


class Section(BaseModel):
    """One part of a recipe: unknown keys refused, no conversion between types, nothing changed afterwards."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=False,
        protected_namespaces=(),
    )


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where: the field's path, relative to the section that found it."""

    path: tuple[str | int, ...]
    message: str


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise all problems as one validation error, if there are any."""
    if problems:
        text = "; ".join(problem.message.replace("{", "(").replace("}", ")") for problem in problems)
        raise PydanticCustomError("recipe_problems", text, {"problems": list(problems)})


def raise_problem(message: str) -> None:
    """Raise one problem with the field that is being validated."""
    raise_problems([Problem((), message)])


def expand_variables(value: Any) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in a text by environment variables; other values pass."""
    if not isinstance(value, str):
        return value
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"]) or match["default"]
        if found is None:
            missing.append(match["name"])
        return found or ""

    expanded = _VARIABLE.sub(replace, value)
    if missing:
        names = " and ".join(missing)
        raise_problem(
            f"given {show_value(value)}, but the environment variable {names} is not set; set it, or write a default: "
            f"${{{missing[0]}:-some value}}"
        )
    return expanded


def _empty_to_none(value: Any) -> Any:
    return None if value == "" else value


def resolve_path(value: str, info: ValidationInfo) -> str:
    """Return a local path made absolute: ``~`` expanded, a relative one taken from the recipe file's folder.

    URLs pass unchanged. Without a recipe file (a recipe read back from a record) paths are absolute already.
    """
    if "://" in value:
        return value
    path = Path(value).expanduser()
    folder = (info.context or {}).get("folder")
    if not path.is_absolute() and folder is None:
        raise_problem(f"given {show_value(value)}; a path must be absolute here")
    return os.path.normpath(Path(folder or "/") / path)


def _refuse_repeats[T](values: tuple[T, ...]) -> tuple[T, ...]:
    repeated = [value for index, value in enumerate(values) if value in values[:index]]
    if repeated:
        raise_problem(f"has {show_value(repeated[0])} more than once")
    return values


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise_problem(f"given {show_value(value)}; must be one number, text, true or false")
    if isinstance(value, float) and not math.isfinite(value):
        raise_problem(f"given {value}; must be a finite number")
    return value


def _check_option_value(value: Any) -> Any:
    if value is None or not isinstance(value, list | tuple):
        return value if value is None else _check_scalar(value)
    return tuple(_check_option_value(item) for item in value)


Scalar = Annotated[bool | int | float | str, PlainValidator(_check_scalar)]
OptionValue = Annotated[Any, PlainValidator(_check_option_value)]
"""A MaxText option's value: a scalar, null, or a list of them."""

Tuple = BeforeValidator(_as_tuple)
"""Lets YAML's lists fill a tuple, which stays frozen, without loosening what is inside."""

Distinct = AfterValidator(_refuse_repeats)
EnvText = Annotated[str, BeforeValidator(expand_variables)]
"""A text in which environment variables are expanded."""

OptionalEnvText = Annotated[str | None, BeforeValidator(_empty_to_none), BeforeValidator(expand_variables)]
"""The same, where an empty text means null."""

LocalPath = Annotated[str, AfterValidator(resolve_path)]
