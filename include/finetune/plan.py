"""From a recipe and a run to the ordered stages: what each one runs, needs, makes and may take.

Only this module knows the whole; it knows nothing of machines, connections or Airflow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from finetune import settings
from finetune.layout import Layout, content_digest
from finetune.recipe import Recipe
from finetune.steps import Step, command, render_script
from finetune.trainers import artifacts
from finetune.trainers.maxtext import MaxText
from finetune.trainers.training_data import TrainingData, training_data

# Huge pages for glibc's allocations take a seventh off a training step on a CPU: fewer page faults.
CPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
}

StageRole = Literal["tpu", "cpu", "worker"]
StageName = Literal["install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model"]


@dataclass(frozen=True)
class Stage:
    """One stage that runs a job on a machine.

    Args:
        name: The stage's name, which is its task's.
        role: The machine that it needs; ``worker`` is always this machine.
        steps: What it runs, in order.
        env: Environment variables of its job; none of them is secret.
        outputs: What it makes, by name.
        needs: The stages whose outputs it reads.
        limit_seconds: How long its job may run.
        shared: Whether its outputs stand in the cache, so that a run finds those of an earlier one.
        secrets: The names of secrets that its job needs, like ``HF_TOKEN``.
    """

    name: StageName
    role: StageRole
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    outputs: Mapping[str, str]
    limit_seconds: float
    needs: tuple[StageName, ...] = ()
    shared: bool = False
    secrets: tuple[str, ...] = field(default=())

    @property
    def script(self) -> str:
        """The bash script of its job."""
        return render_script(self.steps, self.env)

    @property
    def digest(self) -> str:
        """What tells this stage's work from any other."""
        scripts = sorted(settings.ON_MACHINE_DIR.glob("*.py"))
        return content_digest(self.script, dict(self.outputs), *scripts)


@dataclass(frozen=True)
class Plan:
    """The stages of one run, in order."""

    recipe: Recipe
    run_id: str
    layout: Layout
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        """Return a stage by its name."""
        return next(stage for stage in self.stages if stage.name == name)


def make_plan(recipe: Recipe, run_id: str) -> Plan:
    """Return the plan of one run of a recipe."""
    local = recipe.machines.tpu.kind == "local"
    layout = Layout.for_run(recipe.store_url(), recipe.name, run_id, local=local)
    trainer = MaxText(recipe, layout, hardware="cpu" if local else "tpu")
    data = training_data(recipe, layout, trainer.python)
    makers = (_install, _convert, _train, _export, _check)
    return Plan(recipe, run_id, layout, tuple(make(recipe, layout, trainer, data) for make in makers))


def _environment(recipe: Recipe, trainer: MaxText) -> dict[str, str]:
    offline = (
        {}
        if recipe.dataset.source.hub or recipe.model.source.hub
        else {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    )
    platform = CPU_ENVIRONMENT if trainer.hardware == "cpu" else {}
    return {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", **offline, **platform}


def _secrets(recipe: Recipe) -> tuple[str, ...]:
    return ("HF_TOKEN",) if recipe.model.source.hub or recipe.dataset.source.hub else ()


def _install(recipe: Recipe, layout: Layout, trainer: MaxText, data: TrainingData) -> Stage:
    environment = trainer.environment
    return Stage(
        "install_trainer",
        "tpu",
        (environment,),
        {},
        {"environment": str(environment.output)},
        recipe.limits.install_minutes * 60,
        shared=True,
    )


def _convert(recipe: Recipe, layout: Layout, trainer: MaxText, data: TrainingData) -> Stage:
    conversion = trainer.conversion
    return Stage(
        "convert_checkpoint",
        "cpu",
        (*trainer.prepare(), conversion),
        _environment(recipe, trainer),
        {"source_model": trainer.model_dir, "checkpoint": str(conversion.output)},
        recipe.limits.convert_minutes * 60,
        shared=True,
        secrets=_secrets(recipe),
    )


def _train(recipe: Recipe, layout: Layout, trainer: MaxText, data: TrainingData) -> Stage:
    return Stage(
        "train",
        "tpu",
        (*trainer.prepare(), *data.steps, trainer.training(data)),
        _environment(recipe, trainer),
        {"checkpoint": trainer.trained_checkpoint(data)},
        recipe.limits.train_hours * 3600,
        needs=("convert_checkpoint",),
        secrets=_secrets(recipe),
    )


def _export(recipe: Recipe, layout: Layout, trainer: MaxText, data: TrainingData) -> Stage:
    return Stage(
        "export_checkpoint",
        "cpu",
        (*trainer.prepare(), *trainer.export(data)),
        _environment(recipe, trainer),
        {"model": f"{layout.run}/model"},
        recipe.limits.export_minutes * 60,
        needs=("train",),
        secrets=_secrets(recipe),
    )


def _check(recipe: Recipe, layout: Layout, trainer: MaxText, data: TrainingData) -> Stage:
    environment = artifacts.check_environment(layout)
    python = f"{environment.output}/bin/python"
    after = evaluation(recipe, layout, python, f"{layout.run}/model", data, f"{layout.run}/evaluation.json")
    identity = [
        "evaluation",
        artifacts.source_model_identity(recipe, layout),
        data.identity,
        _settings_of(recipe),
    ]
    cached = layout.cached(
        "evaluations", content_digest(identity, settings.ON_MACHINE_DIR / "evaluate_model.py")
    )
    before = evaluation(recipe, layout, python, trainer.model_dir, data, '"$NEW"')
    return Stage(
        "check_model",
        "worker",
        (
            environment,
            *trainer.prepare(),
            *data.steps,
            Step("evaluate_source", (before,), cached),
            Step("evaluate_model", (after,)),
        ),
        _environment(recipe, trainer),
        {"before": cached, "after": f"{layout.run}/evaluation.json"},
        recipe.limits.check_minutes * 60,
        needs=("export_checkpoint",),
        secrets=_secrets(recipe),
    )


def _settings_of(recipe: Recipe) -> list[object]:
    checks = recipe.checks
    return [
        list(checks.prompts),
        checks.max_new_tokens,
        checks.heldout_examples,
        recipe.trainer.max_target_length,
    ]


def evaluation(recipe: Recipe, layout: Layout, python: str, model: str, data: TrainingData, out: str) -> str:
    """Return the commands that measure a Hugging Face directory on the held-out part and the recipe's prompts."""
    checks = recipe.checks
    prompts = command("printf", "%s", json.dumps(list(checks.prompts))) + ' > "$PWD/prompts.json"'
    words = [
        python, layout.script("evaluate_model.py"), "--model", model, "--out", out,
        "--max-length", str(recipe.trainer.max_target_length), "--max-new-tokens", str(checks.max_new_tokens),
        "--prompts", '"$PWD/prompts.json"', "--threads", '"$(nproc)"',
    ]  # fmt: skip
    if not data.heldout_file:
        return f"{prompts}\n{command(*words)}"
    first = command("head", "-n", str(checks.heldout_examples), data.heldout_file) + ' > "$PWD/heldout.jsonl"'
    return f"{prompts}\n{first}\n{command(*words, '--heldout', '"$PWD/heldout.jsonl"')}"
