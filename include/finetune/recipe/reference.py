"""Write ``docs/recipes.md`` from the schema, so that what is written there is what is checked.

``python -m finetune.recipe.reference > docs/recipes.md`` writes the page; ``--check`` tells if it is current.
The words around the tables stand in ``reference_template.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from finetune import settings
from finetune.recipe.catalogue import tpu_machine_types
from finetune.recipe.options import REFUSED_PREFIXES, RESERVED_OPTIONS
from finetune.recipe.recipe import Recipe
from finetune.recipe.walk import kind_values, section_classes
from finetune.trainers.maxtext_options import load_options

PAGE = settings.PROJECT_ROOT / "docs" / "recipes.md"
EXAMPLE = settings.INCLUDE_DIR / "recipes" / "gemma3-4b-ultrachat.yaml"
MAXTEXT_VERSIONS = ("0.2.2", "0.2.5")

TEMPLATE = Path(__file__).with_name("reference_template.md")


def render_page() -> str:
    """Return the whole page."""
    page = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "example_name": EXAMPLE.name,
        "example": EXAMPLE.read_text(encoding="utf-8").rstrip("\n"),
        "fields": "\n\n".join(_render_section(Recipe, "")),
        "machine_types": _render_machine_types(),
        "models": _render_models(),
        "options": _render_options(),
    }
    for name, text in parts.items():
        page = page.replace("{" + name + "}", text)
    return page


def _render_section(section: type[BaseModel], path: str) -> Iterator[str]:
    """Yield a section's heading, text and table, then those of the sections in it."""
    kinds = kind_values(section)
    title = f"`{path}`" if path else "The recipe"
    if kinds:
        title += f" with `kind: {kinds[0]}`"
    yield f"### {title}\n\n{(section.__doc__ or '').strip()}\n\n{_render_table(section)}"
    for name, field in section.model_fields.items():
        for inner in section_classes(field.annotation):
            if path == "machines" and name == "cpu":
                continue
            label = "machines.<role>" if path == "machines" else f"{path}.{name}".lstrip(".")
            yield from _render_section(inner, label)


def _render_table(section: type[BaseModel]) -> str:
    rows = ["| field | value | default | |", "|---|---|---|---|"]
    for name, field in sorted(section.model_fields.items(), key=lambda item: item[0] != "kind"):
        marks = "".join(f" **{mark}**" for mark in _marks(field))
        text = (field.description or "") + _describe_examples(field)
        rows.append(f"| `{name}`{marks} | {describe_value(field)} | {_describe_default(field)} | {text} |")
    return "\n".join(rows)


def _marks(field: FieldInfo) -> list[str]:
    extra = field.json_schema_extra
    marks = ["run"] if isinstance(extra, dict) and "run_param" in extra else []
    return [*marks, "env"] if "expand_variables" in repr((field.annotation, field.metadata)) else marks


def describe_value(field: FieldInfo) -> str:
    """Return what a field's value may be: its type and its limits."""
    limits = []
    for limit in field.metadata:
        for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if hasattr(limit, attribute):
                limits.append(f"{sign} {getattr(limit, attribute):,}")
        if hasattr(limit, "max_length"):
            limits.append(f"at most {limit.max_length:,}")
    words = _describe_type(field.annotation)
    return f"{words}, {' and '.join(limits)}" if limits else words


def _describe_type(annotation: Any) -> str:
    """Return a type in a reader's words."""
    if annotation in _TYPE_WORDS:
        return _TYPE_WORDS[annotation]
    classes = section_classes(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _describe_type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if classes:
        null = " or null" if type(None) in arguments else ""
        return f"section{'' if len(classes) == 1 else ', one of several kinds'}{null}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe_type(argument) for argument in arguments))
    if origin is tuple:
        return f"list of {_describe_type(arguments[0])}s"
    if origin is dict:
        return "mapping of options"
    raise TypeError(f"no words for the type {annotation!r}")


_TYPE_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    str: "text",
    type(None): "null",
}


def _describe_default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    default = field.default if field.default is not PydanticUndefined else None
    if field.default_factory is not None:
        return "its defaults" if section_classes(field.annotation) else "none"
    return f"`{_to_yaml(default)}`"


def _describe_examples(field: FieldInfo) -> str:
    if not field.examples:
        return ""
    return f" Example: `{_to_yaml(field.examples[0])}`"


def _to_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    plain = json.loads(json.dumps(value))
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _render_machine_types() -> str:
    rows = [
        "| `machine_type` (compute-engine) | `accelerator_type` (cloud-tpu) | chips | topology | zones |",
        "|---|---|---|---|---|",
    ]
    for machine in tpu_machine_types().values():
        cells = (
            f"`{machine.name}`",
            f"`{machine.accelerator_type}`",
            str(machine.chips),
            machine.topology,
            ", ".join(machine.zones),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _render_models() -> str:
    rows = ["| MaxText | `model.maxtext_name` |", "|---|---|"]
    rows += [f"| {version} | {', '.join(load_options(version).models)} |" for version in MAXTEXT_VERSIONS]
    return "\n".join(rows)


def _render_options() -> str:
    rows = ["| option | |", "|---|---|"]
    rows += [f"| `{name}` | {reason} |" for name, reason in RESERVED_OPTIONS.items()]
    rows += [f"| `{prefix}*` | {reason} |" for prefix, reason in REFUSED_PREFIXES.items()]
    rows.append("| options of the model's architecture | go in `model.overrides` |")
    return "\n".join(rows)


def main() -> int:
    """Print the page, or with ``--check`` compare it with the one on disk."""
    parser = argparse.ArgumentParser(description="Write the reference of recipes, made from their schema.")
    parser.add_argument("--check", action="store_true", help=f"fail if {PAGE.name} is not up to date")
    if not parser.parse_args().check:
        sys.stdout.write(render_page())
        return 0
    if is_current(PAGE):
        return 0
    print(f"{PAGE} is stale: python -m finetune.recipe.reference > docs/recipes.md", file=sys.stderr)
    return 1


def is_current(page: Path) -> bool:
    """Tell whether a page holds what the schema says now."""
    return page.exists() and page.read_text(encoding="utf-8") == render_page()


if __name__ == "__main__":
    sys.exit(main())
