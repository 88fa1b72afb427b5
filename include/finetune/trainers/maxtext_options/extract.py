"""Write the table of one MaxText version's options and models, read from its package without importing it.

MaxText lists its options as pydantic classes in ``configs/types.py``. Importing that module needs JAX, so
this reads the source as a syntax tree: any unpacked wheel will do, no installation::

    pip download --no-deps --no-binary :none: --only-binary :all: maxtext==0.2.5
    python -m zipfile -e maxtext-0.2.5-py3-none-any.whl unpacked
    PYTHONPATH=include python -m finetune.trainers.maxtext_options.extract unpacked/maxtext 0.2.5

The last command writes ``0.2.5.json`` beside this file.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

import yaml

_TABLES = (
    "checkpoint_conversion/utils/param_mapping.py:PARAM_MAPPING",
    "checkpoint_conversion/utils/param_mapping.py:HOOK_FNS",
    "checkpoint_conversion/utils/hf_model_configs.py:HF_MODEL_CONFIGS",
    "utils/globals.py:HF_IDS",
)
"""The tables of MaxText that a model must be in to be converted to and from Hugging Face format."""

_NOT_ARCHITECTURE = {
    "base_config",
    "dtype",
    "enable_dropout",
    "load_balance_loss_weight",
    "log_moe_bias_norms",
    "routed_bias_update_rate",
    "scan_layers",
    "tokenizer_type",
    "unquantized_modules",
    "use_audio",
    "use_multimodal",
    "weight_block_size",
    "weight_dtype",
}
"""What some model tables set although it says how to train or store, not what the model is."""

_SIMPLE_TYPES: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "PositiveInt": {"type": "integer", "exclusiveMinimum": 0},
    "NonNegativeInt": {"type": "integer", "minimum": 0},
    "float": {"type": "number"},
    "NonNegativeFloat": {"type": "number", "minimum": 0},
    "str": {"type": "string"},
    "PathStr": {"type": "string"},
    "AxisNames": {"type": "string"},
    "list": {"type": "array"},
    "tuple": {"type": "array"},
    "dict": {"type": "object"},
    "Any": {},
}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

Option = dict[str, Any]


class Sources:
    """The classes and type names that MaxText's configuration modules define."""

    def __init__(self, package_dir: Path) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        for module in ("common/common_types.py", "configs/types.py"):
            for node in ast.parse((package_dir / module).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] = node
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.aliases[node.targets[0].id] = node.value

    def base_names(self, name: str) -> list[str]:
        """Return the names of a class's bases, outermost name only."""
        return [ast.unparse(base).split(".")[-1] for base in self.classes[name].bases]

    def enum_values(self, name: str) -> list[str | int] | None:
        """Return the values of an enumeration, ``None`` for any other class."""
        if name not in self.classes or not any("Enum" in base for base in self.base_names(name)):
            return None
        values = [node.value for node in self.classes[name].body if isinstance(node, ast.Assign)]
        return [value.value for value in values if isinstance(value, ast.Constant)]  # type: ignore[misc]

    def enum_default(self, member: ast.Attribute) -> Option:
        """Return the default that an enumeration's member stands for, nothing for any other expression."""
        for node in getattr(self.classes.get(ast.unparse(member.value)), "body", ()):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == member.attr:
                return {"default": ast.literal_eval(node.value)}
        return {}


def describe_type(annotation: ast.expr, sources: Sources) -> Option | None:
    """Return JSON-schema keywords for a type, ``None`` for a nested model, none for an unknown type."""
    name = ast.unparse(annotation)
    if name in _SIMPLE_TYPES:
        return dict(_SIMPLE_TYPES[name])
    values = sources.enum_values(name)
    if values is not None:
        return {"enum": values}
    if name in sources.classes:
        return None
    if isinstance(annotation, ast.BinOp):
        return _describe_union([annotation.left, annotation.right], sources)
    if isinstance(annotation, ast.Subscript):
        outer, inner = ast.unparse(annotation.value), annotation.slice
        items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if outer == "Literal":
            return {"enum": [ast.literal_eval(item) for item in items]}
        if outer == "Optional":
            return _describe_union([inner, ast.Constant(None)], sources)
        return dict(_SIMPLE_TYPES.get(outer, {}))
    alias = sources.aliases.get(name)
    if isinstance(alias, ast.Subscript):
        return describe_type(alias, sources)
    return {}


def _describe_union(members: list[ast.expr], sources: Sources) -> Option:
    """Return the keywords of a union: one type that may be null, else no keywords but ``nullable``."""
    described = [describe_type(m, sources) for m in members if ast.unparse(m) != "None"]
    option: Option = dict(described[0] or {}) if len(described) == 1 else {}
    if len(described) < len(members) or any(d and d.get("nullable") for d in described):
        option["nullable"] = True
    return option


def describe_field(node: ast.AnnAssign, sources: Sources) -> Option | None:
    """Return an option's keywords: type, limits, a literal default; ``None`` for a nested model."""
    option = describe_type(node.annotation, sources)
    if option is None:
        return None
    default: ast.expr | None = node.value
    if isinstance(default, ast.Call):
        for keyword in default.keywords:
            if keyword.arg in _LIMITS and isinstance(keyword.value, ast.Constant):
                option[_LIMITS[keyword.arg]] = keyword.value.value
        default = default.args[0] if default.args else None
    if isinstance(default, ast.Constant) and default.value is not ...:
        option["default"] = default.value
    elif isinstance(default, ast.Attribute):
        option |= sources.enum_default(default)
    return option


def collect_options(class_name: str, sources: Sources, prefix: str = "") -> dict[str, Option]:
    """Return every option of a configuration class and its bases, nested models' as ``outer.inner``."""
    options: dict[str, Option] = {}
    for base in sources.base_names(class_name):
        if base in sources.classes:
            options |= collect_options(base, sources, prefix)
    for node in sources.classes[class_name].body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name = prefix + node.target.id
        option = describe_field(node, sources)
        if option is None:
            options |= collect_options(ast.unparse(node.annotation), sources, f"{name}.")
        else:
            options[name] = option
    return options


def read_table_keys(path: Path, table: str) -> set[str]:
    """Return the text keys of a dictionary that a module assigns to a name."""
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == table
            and isinstance(node.value, ast.Dict)
        ):
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}  # type: ignore[misc]
    raise LookupError(f"{path} assigns no dictionary to {table}")


def collect_models(package_dir: Path, options: dict[str, Option]) -> dict[str, list[str]]:
    """Return the models that convert from Hugging Face format and back, with what their tables set."""
    names = set(options["model_name"]["enum"])
    for entry in _TABLES:
        file, table = entry.split(":")
        names &= read_table_keys(package_dir / file, table)
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        path = (
            package_dir / "configs" / "models" / f"{name.replace('-Instruct', '')}.yml"
        )  # as MaxText's pyconfig does
        if path.exists():
            models[name] = sorted(set(yaml.safe_load(path.read_text())) & set(options))
    return models


def extract(package_dir: Path, version: str) -> dict[str, Any]:
    """Return the whole table of one version."""
    sources = Sources(package_dir)
    options = collect_options("MaxTextConfig", sources)
    models = collect_models(package_dir, options)
    return {
        "version": version,
        "models": models,
        "architecture_options": sorted(
            {name for names in models.values() for name in names} - _NOT_ARCHITECTURE
        ),
        "options": dict(sorted(options.items())),
    }


def main() -> None:
    """Read the package named on the command line and write its table beside this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package_dir", type=Path, help="the unpacked package's folder `maxtext`")
    parser.add_argument("version", help="its version, such as 0.2.5")
    arguments = parser.parse_args()
    table = extract(arguments.package_dir, arguments.version)
    path = Path(__file__).with_name(f"{arguments.version}.json")
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {len(table['options'])} options, {len(table['models'])} models")


if __name__ == "__main__":
    main()
