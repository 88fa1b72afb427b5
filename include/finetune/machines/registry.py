"""Which kinds of machines there are."""

from __future__ import annotations

import difflib
import importlib

from finetune.errors import RecipeError
from finetune.machines.base import MachineProvider

# kind -> module:class, imported only when a machine of the kind is asked for.
PROVIDERS = {"local": "finetune.machines.local:LocalMachineProvider"}


def get_provider(kind: str) -> MachineProvider:
    """Return the provider of a kind of machine.

    Raises:
        RecipeError: This version has no such kind.
    """
    if kind not in PROVIDERS:
        near = difflib.get_close_matches(kind, PROVIDERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RecipeError(
            f"No machines of kind {kind!r} in this version; it has: {', '.join(sorted(PROVIDERS))}.{hint}",
            resource="machine.kind",
            next_step="Change the machine's kind in the recipe, or install a version that has it.",
        )
    module_name, _, class_name = PROVIDERS[kind].partition(":")
    provider: MachineProvider = getattr(importlib.import_module(module_name), class_name)()
    return provider
