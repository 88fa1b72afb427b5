"""The options and models of each MaxText version, as data made by ``extract.py``, without MaxText itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class MaxTextOptions:
    """What one MaxText version accepts.

    Args:
        version: The version of the package.
        models: The models that convert from Hugging Face format and back, each with the options that its
            table sets: MaxText refuses those on the command line unless the model is overridden.
        architecture_options: Options that say what a model is; conversion, training and export must agree.
        options: Every option's JSON-schema keywords (``type``, ``enum``, ``minimum``, ``default``, ...), and
            ``nullable``.
    """

    version: str
    models: Mapping[str, frozenset[str]]
    architecture_options: frozenset[str]
    options: Mapping[str, Mapping[str, Any]]


@cache
def load_options(version: str) -> MaxTextOptions:
    """Return the table of a MaxText version; ``FileNotFoundError`` where there is none."""
    table = json.loads(Path(__file__).with_name(f"{version}.json").read_text(encoding="utf-8"))
    return MaxTextOptions(
        version=table["version"],
        models={name: frozenset(options) for name, options in table["models"].items()},
        architecture_options=frozenset(table["architecture_options"]),
        options=table["options"],
    )
