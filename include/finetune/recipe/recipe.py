"""The whole recipe."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from finetune.recipe import patterns
from finetune.recipe.base import OptionalEnvText, Problem, Section, raise_problem, raise_problems
from finetune.recipe.dataset import DatasetSection
from finetune.recipe.machine import (
    CloudTpuMachine,
    ComputeEngineMachine,
    GoogleMachine,
    LocalMachine,
    MachinesSection,
)
from finetune.recipe.model import ModelSection, check_model_names
from finetune.recipe.options import check_model_options
from finetune.recipe.publish import ChecksSection, LimitsSection, NotificationsSection, PublishSection
from finetune.recipe.suggest import show_value
from finetune.recipe.trainer import MaxTextSft

STORE_SCHEMES = ("file", "gs")
Role = Literal["tpu", "cpu"]

_PRESETS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}


def _check_schedule(schedule: str | None) -> str | None:
    if schedule is None:
        return None
    given = f"given {show_value(schedule)}"
    if schedule in _PRESETS:
        raise_problem(f"{given}; write it as five fields: {_PRESETS[schedule]!r}")
    if len(schedule.split()) != 5:
        raise_problem(
            f"{given}, which has {len(schedule.split())} fields; needs five: minute hour day month weekday"
        )

    # Airflow's own reader of cron expressions, imported only for recipes with a schedule.
    from croniter import croniter  # type: ignore[import-untyped]

    if not croniter.is_valid(schedule):
        raise_problem(
            f"{given}, which is no cron expression"
            " (minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-7)"
        )
    return schedule


def _check_store(store: str | None) -> str | None:
    if store is None:
        return None
    scheme, separator, rest = store.partition("://")
    if not separator:
        if not store.startswith("/"):
            raise_problem(
                f"given {show_value(store)}; must be file:///absolute/path, gs://bucket/folder or an absolute path"
            )
        return f"file://{store.rstrip('/') or '/'}"
    if scheme not in STORE_SCHEMES:
        raise_problem(f"given {show_value(store)}; this version stores in file:// and gs:// only")
    if scheme == "file" and not rest.startswith("/"):
        raise_problem(f"given {show_value(store)}; write three slashes: file:///absolute/path")
    if scheme == "gs" and not re.match(r"[a-z0-9]", rest):
        raise_problem(f"given {show_value(store)}; the bucket's name is missing")
    return store.rstrip("/")


def _explain_no(value: Any) -> Any:
    if value is False:
        raise_problem("given false; write null for none")
    return value


class Recipe(Section):
    """A fine-tune: this model, this data, these steps, on those machines, published there."""

    name: str = Field(
        pattern=patterns.NAME,
        description="The recipe's name, which is also the file's: `<name>.yaml`.",
        examples=["gemma3-4b-ultrachat"],
    )
    description: str = Field("", max_length=2000, description="What it is for, shown in Airflow.")
    owner: str = Field(
        "ml-team", min_length=1, max_length=100, description="Who answers for it, shown in Airflow."
    )
    schedule: Annotated[str | None, BeforeValidator(_explain_no), AfterValidator(_check_schedule)] = Field(
        None,
        description="When to run, as a cron expression of five fields in UTC; null means only when"
        " triggered.",
        examples=["0 2 * * *"],
    )
    model: ModelSection = Field(description="Which model to fine-tune.")
    dataset: DatasetSection = Field(description="Which conversations to train on.")
    trainer: MaxTextSft = Field(description="How to train.")
    machines: MachinesSection = Field(description="Which machine each role gets.")
    store: Annotated[OptionalEnvText, AfterValidator(_check_store)] = Field(
        None,
        description="Where runs, checkpoints and caches are kept: `gs://bucket/folder`, `file:///path` or an"
        " absolute path; null means the installation's default (the environment variable FINETUNE_STORE).",
        examples=["gs://my-bucket/finetune"],
    )
    limits: LimitsSection = Field(default_factory=LimitsSection, description="How long each stage may take.")
    checks: ChecksSection = Field(
        default_factory=ChecksSection, description="What must hold before publication."
    )
    publish: PublishSection = Field(
        default_factory=PublishSection, description="Where the model is published."
    )
    notifications: NotificationsSection = Field(
        default_factory=NotificationsSection, description="Whom to tell."
    )

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: ModelSection, info: ValidationInfo) -> ModelSection:
        version = (info.context or {}).get("trainer_version")
        if version is not None:
            raise_problems(check_model_names(model.maxtext_name, model.overrides, version))
        return model

    @model_validator(mode="after")
    def _check_together(self) -> Recipe:
        problems = [
            Problem(("model", *problem.path), problem.message)
            for problem in check_model_names(
                self.model.maxtext_name, self.model.overrides, self.trainer.version
            )
        ]
        problems += [
            Problem(("trainer", "options", *problem.path), problem.message)
            for problem in check_model_options(
                self.trainer.options, self.model.maxtext_name, self.trainer.version
            )
        ]
        raise_problems(problems + self._check_heldout() + self._check_run_hours())
        return self

    def _check_heldout(self) -> list[Problem]:
        """Return what asks for a held-out part where the dataset has none."""
        if self.dataset.has_heldout():
            return []
        hub = self.dataset.source.hub is not None
        cure = "name dataset.source.heldout_split" if hub else "set dataset.heldout_percent above 0"
        problems = []
        if self.trainer.eval is not None:
            text = f"needs held-out data, and the dataset has none; {cure}, or set it to null"
            problems.append(Problem(("trainer", "eval"), text))
        if self.checks.min_heldout_improvement is not None:
            text = f"needs held-out data, and the dataset has none; {cure}, or set it to null"
            problems.append(Problem(("checks", "min_heldout_improvement"), text))
        return problems

    def _check_run_hours(self) -> list[Problem]:
        """Return where Google would delete the machine before training may have ended."""
        machine = self.machines.tpu
        if not isinstance(machine, GoogleMachine) or machine.max_run_hours > self.limits.train_hours:
            return []
        text = (
            f"given {machine.max_run_hours}; must be more than limits.train_hours"
            f" ({self.limits.train_hours}), or the machine"
            " would be deleted in mid-training"
        )
        return [Problem(("machines", "tpu", "max_run_hours"), text)]

    def digest(self) -> str:
        """Return the SHA-256 of all that the recipe says, defaults included, as 64 hexadecimal digits."""
        text = json.dumps(
            self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def store_url(self) -> str:
        """Return the store's URL: the recipe's own, else the installation's default."""
        from finetune import settings

        return self.store if self.store is not None else settings.default_store_url()

    def machine_for(self, role: Role) -> LocalMachine | ComputeEngineMachine | CloudTpuMachine:
        """Return the machine of a role; without one for ``cpu``, that of ``tpu`` does both."""
        if role == "cpu" and self.machines.cpu is not None:
            return self.machines.cpu
        return self.machines.tpu
