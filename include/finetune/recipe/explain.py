"""Turn what pydantic found into lines that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from finetune.recipe import patterns
from finetune.recipe.base import Problem
from finetune.recipe.suggest import did_you_mean, list_names, show_value
from finetune.recipe.walk import find_section, kind_values, section_classes, walk_fields

_ONE_WORD = re.compile(r"[\w./-]{1,60}")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a mapping (key: value lines)",
    "model_type": "a mapping (key: value lines)",
    "model_attributes_type": "a mapping (key: value lines)",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "a finite number",
}
_LIMIT_WORDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def explain_error(error: ValidationError, root: type[BaseModel], data: Any) -> list[Problem]:
    """Return every problem of a validation error with its full path, each once, in the schema's order."""
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        path = _strip_tags(detail["loc"], data)
        nested = detail.get("ctx", {}).get("problems")
        if nested is not None:
            problems += [Problem((*path, *problem.path), problem.message) for problem in nested]
        else:
            problems.append(Problem(path, _explain(detail, path, root, data)))
    return list({(problem.path, problem.message): problem for problem in problems}.values())


def _strip_tags(loc: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Return an error's path without what pydantic adds: the chosen ``kind``, a union's tried types."""
    path: list[str | int] = []
    may_be_tag = False
    for step in loc:
        if may_be_tag and isinstance(data, dict) and data.get("kind") == step:
            may_be_tag = False
            continue
        if not isinstance(data, dict | list | tuple) and path:
            break
        path.append(step)
        data = _get(data, step)
        may_be_tag = True
    return tuple(path)


def _get(data: Any, step: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(step)
    if isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
        return data[step]
    return None


def _explain(detail: Any, path: tuple[str | int, ...], root: type[BaseModel], data: Any) -> str:
    """Return one error as a sentence without its path."""
    kind: str = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    field = str(path[-1]) if path else ""
    given = f"given {show_value(detail['input'], field)}"
    if kind == "extra_forbidden":
        return _explain_unknown(path, root, data)
    if kind == "missing":
        return f"is missing{_describe_field(path, root, data)}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _explain_kind(path, root, data)
    if kind == "literal_error":
        return _explain_choice(detail["input"], given, str(context["expected"]))
    if kind in _TYPE_WORDS:
        return f"{given}; must be {_TYPE_WORDS[kind]}{_type_hint(kind, detail['input'])}"
    if kind in _LIMIT_WORDS:
        words, key = _LIMIT_WORDS[kind]
        return f"{given}; must be {words} {context[key]}"
    explain = _OTHER.get(kind)
    return f"{given}; {explain(context) if explain else detail['msg']}"


_OTHER: dict[str, Callable[[dict[str, Any]], str]] = {
    "string_pattern_mismatch": lambda context: f"must be {patterns.WORDS[context['pattern']]}",
    "string_too_short": lambda context: "must not be empty",
    "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
    "too_short": lambda context: f"needs at least {context['min_length']} entry",
    "too_long": lambda context: (
        f"has {context['actual_length']} entries; at most {context['max_length']} are allowed"
    ),
}


def _type_hint(kind: str, value: object) -> str:
    """Return what a value of the wrong type was probably meant to be."""
    if (
        kind == "bool_type"
        and isinstance(value, str)
        and value.lower() in ("yes", "no", "on", "off", "y", "n")
    ):
        return f"; `{value}` is a text here"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return "; write it without quotes and units"
    if kind == "string_type" and isinstance(value, int | float):
        return f"; put it in quotes: '{value}'"
    if kind in ("list_type", "tuple_type") and isinstance(value, str) and _ONE_WORD.fullmatch(value):
        return f": [{value}]"
    return ""


def _explain_unknown(path: tuple[str | int, ...], root: type[BaseModel], data: Any) -> str:
    """Return what a key that does not exist may have been meant to be, or where it belongs."""
    name, parent = path[-1], path[:-1]
    section = find_section(root, parent, data)
    allowed = list(section.model_fields) if section else []
    suggestion = did_you_mean(name, allowed)
    if not suggestion:
        homes = sorted({".".join(found) for found, _ in walk_fields(root) if found[-1] == name})
        suggestion = f" It belongs in {' or '.join(homes)}." if homes else ""
    where = ".".join(map(str, parent)) or "a recipe"
    return f"is no field of {where}.{suggestion} Its fields: {list_names(allowed)}"


def _explain_choice(value: Any, given: str, expected: str) -> str:
    """Return the allowed values, and the nearest one."""
    allowed = [item.strip(" '") for item in expected.replace(" or ", ",").split(",")]
    return f"{given}; allowed: {', '.join(allowed)}.{did_you_mean(value, allowed)}"


def _explain_kind(path: tuple[str | int, ...], root: type[BaseModel], data: Any) -> str:
    """Return which kinds a section may be of."""
    parent = find_section(root, path[:-1], data)
    field = parent.model_fields.get(str(path[-1])) if parent else None
    allowed = (
        [kind for cls in section_classes(field.annotation) for kind in kind_values(cls)] if field else []
    )
    for step in path:
        data = _get(data, step)
    value = data.get("kind") if isinstance(data, dict) else None
    given = f"given kind {show_value(value)}" if value is not None else "has no `kind`"
    return f"{given}; allowed: {', '.join(allowed)}.{did_you_mean(value, allowed)}"


def _describe_field(path: tuple[str | int, ...], root: type[BaseModel], data: Any) -> str:
    """Return a field's description and example, to be put after `is missing`."""
    parent = find_section(root, path[:-1], data)
    field = parent.model_fields.get(str(path[-1])) if parent else None
    if field is None or not field.description:
        return ""
    example = f" Example: {field.examples[0]}." if field.examples else ""
    return f": {field.description}{example}"
