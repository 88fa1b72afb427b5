"""A run as every stage sees it: told only recipe, run id and params, it finds the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from finetune import settings
from finetune.errors import RecipeError
from finetune.machines.base import MachineProvider, MachineSpec, Role
from finetune.machines.registry import get_provider
from finetune.plan import Plan, make_plan
from finetune.recipe import Recipe, apply_params, load_recipe
from finetune.store import RunStore, Store


@dataclass(frozen=True)
class RunContext:
    """One run of one recipe.

    Args:
        recipe: The recipe, with the run's params applied.
        run_id: The run's id; Airflow's own where Airflow runs it.
        params: What was changed for this run.
    """

    recipe: Recipe
    run_id: str
    params: Mapping[str, Any]

    @classmethod
    def load(cls, recipe_path: Path, run_id: str, params: Mapping[str, Any]) -> RunContext:
        """Read the recipe as it is now and apply the run's params.

        Raises:
            RecipeError: The recipe or a param cannot be right.
        """
        return cls(apply_params(load_recipe(recipe_path), params), run_id, dict(params))

    @cached_property
    def store(self) -> RunStore:
        """This run's part of the store."""
        return Store(self.recipe.store_url()).run(self.recipe.name, self.run_id)

    @cached_property
    def plan(self) -> Plan:
        """The run's stages."""
        return make_plan(self.recipe, self.run_id)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that everything of this run carries."""
        return {"recipe": self.recipe.name, "run": self.run_id}

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that ``create_machine`` makes machines for: one machine does both unless the recipe says more."""
        return ("tpu",) if self.recipe.machines.cpu is None else ("tpu", "cpu")

    def machine_role(self, role: Role) -> Role:
        """Return the role of the machine that does a role's work."""
        return "tpu" if role == "cpu" and self.recipe.machines.cpu is None else role

    def machine_spec(self, role: Role) -> MachineSpec:
        """Return what to ask a provider for; ``worker`` is always this machine."""
        if role == "worker":
            return MachineSpec(role, "local")
        section = self.recipe.machine_for(role)
        return MachineSpec(role, section.kind, section.model_dump(mode="json"))

    def provider(self, role: Role) -> MachineProvider:
        """Return the provider of a role's machine."""
        return get_provider(self.machine_spec(role).kind)


def recipe_path(name: str) -> Path:
    """Return the file of a recipe by its name.

    Raises:
        RecipeError: There is none of this name.
    """
    path = settings.recipes_dir() / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in settings.recipes_dir().glob("*.yaml"))
        raise RecipeError(
            f"there is no recipe {name!r} in {settings.recipes_dir()}",
            resource=name,
            left="nothing was created",
            next_step=f"use one of: {', '.join(known)}",
        )
    return path
