"""Find one's way in the schema: which field, and which section's class, a path leads to."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def section_classes(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a field's type can hold: none for a plain value, several for a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return section_classes(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [found for member in typing.get_args(annotation) for found in section_classes(member)]
    return []


def find_section(root: type[BaseModel], path: Sequence[str | int], data: Any) -> type[BaseModel] | None:
    """Return the class of the section at a path; of several, the one whose ``kind`` the data names."""
    section: type[BaseModel] | None = root
    for step in path:
        field = section.model_fields.get(str(step)) if section else None
        if field is None:
            return None
        data = data.get(step) if isinstance(data, dict) else None
        kind = data.get("kind") if isinstance(data, dict) else None
        candidates = section_classes(field.annotation)
        named = [cls for cls in candidates if len(candidates) == 1 or kind in kind_values(cls)]
        section = named[0] if named else None
    return section


def kind_values(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the values that a section's ``kind`` may have."""
    field = section.model_fields.get("kind")
    return typing.get_args(field.annotation) if field else ()


def walk_fields(
    root: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield the path and definition of every field, sections included, in the order of the schema."""
    for name, field in root.model_fields.items():
        yield (*path, name), field
        for section in section_classes(field.annotation):
            yield from walk_fields(section, (*path, name))
