"""Read YAML the way people expect it: YAML 1.2's plain values, no key twice, and the line of every field."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Path_ = tuple[str | int, ...]


class YamlProblem(Exception):
    """The text is no usable YAML.

    Args:
        message: What is wrong.
        line: Line, counted from 1; ``None`` where there is none to name.
        column: Column, counted from 1.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(message)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader with the plain values of YAML 1.2's core schema.

    PyYAML reads YAML 1.1, in which ``2e-5`` is a text, ``on`` and ``no`` are booleans, ``1:30`` is 90 and a
    date is an object. Underscores between digits (``10_000``) are kept from YAML 1.1.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""))


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    return float(
        loader.construct_scalar(node).replace("_", "").replace(".inf", "inf").replace(".nan", "nan").lower()
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


@dataclass(frozen=True)
class YamlText:
    """A parsed document: its data, and a way back from a field to its line."""

    data: Any
    _node: yaml.Node | None = field(repr=False)

    def find_line(self, path: Path_) -> int | None:
        """Return the line (from 1) of a field, or of the nearest field around it that the text has."""
        node, line = self._node, None
        for step in path:
            node, found = _descend(node, step)
            if found is None:
                break
            line = found
        return line


def _descend(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node | None, int | None]:
    """Return the value under a key or index, and the line on which it is named."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None, None


def read_yaml(text: str) -> YamlText:
    """Parse one YAML document.

    Raises:
        YamlProblem: For a syntax error, a key given twice, a second document or a value of no plain type.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return YamlText(None, None)
            _check_nodes(node)
            return YamlText(loader.construct_document(node), node)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        raise YamlProblem(f"holds a character that YAML does not allow: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = [part for part in (error.context, error.problem) if part]
        message = f"is not valid YAML: {', '.join(words)}.{_hint(' '.join(words))}"
        raise YamlProblem(
            message, mark.line + 1 if mark else None, mark.column + 1 if mark else None
        ) from error
    except (ValueError, RecursionError) as error:
        raise YamlProblem(f"cannot be read: {error}") from error


def _hint(problem: str) -> str:
    """Return what most often causes a syntax error, with a leading space."""
    if "alias" in problem:
        return " A text that starts with * (as a schedule may) needs quotes."
    if "'\\t'" in problem or "tab character" in problem:
        return " Indent with spaces, not tabs."
    if "mapping values are not allowed" in problem:
        return " A text with a colon and a space in it needs quotes; or the indentation is wrong."
    return ""


def _check_nodes(root: yaml.Node) -> None:
    """Refuse keys given twice, and an anchor that contains itself."""
    open_nodes: set[int] = set()
    done: set[int] = set()

    def visit(node: yaml.Node) -> None:
        if id(node) in done:
            return
        if id(node) in open_nodes:
            raise YamlProblem("has an anchor that contains itself", node.start_mark.line + 1)
        open_nodes.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        for child in _children(node):
            visit(child)
        open_nodes.discard(id(node))
        done.add(id(node))

    visit(root)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_keys(node: yaml.MappingNode) -> None:
    first_lines: dict[Hashable, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise YamlProblem("has a key that is not a plain word", line)
        if key.value in first_lines:
            raise YamlProblem(
                f"gives the key `{key.value}` twice, first on line {first_lines[key.value]}", line
            )
        first_lines[key.value] = line


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that one of the project's own YAML files holds."""
    data = read_yaml(path.read_text(encoding="utf-8")).data
    if not isinstance(data, dict):
        raise TypeError(f"{path} does not hold a mapping")
    return data
