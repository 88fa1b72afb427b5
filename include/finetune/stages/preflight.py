"""Everything that can be known before a machine is created, checked in one go."""

from __future__ import annotations

import json
import platform
import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from finetune.errors import RecipeError, StoreError
from finetune.recipe.dataset_files import write_split
from finetune.stages.context import RunContext
from finetune.store import RunRecord, StageRecord, Store
from finetune.trainers.training_data import split_dir

# An environment, a converted checkpoint and two training checkpoints of the smallest real model.
LEAST_FREE_BYTES = 8 * 1000**3

# Which `model_type` of a source's config.json goes with which of MaxText's names, by the start of the name.
MODEL_TYPES = {
    "gemma3": ("gemma3", "gemma3_text"),
    "gemma2": ("gemma2",),
    "gemma": ("gemma",),
    "llama": ("llama",),
    "qwen3": ("qwen3", "qwen3_moe"),
    "qwen2": ("qwen2",),
    "mistral": ("mistral",),
    "mixtral": ("mixtral",),
}


def run_preflight(context: RunContext) -> StageRecord:
    """Check recipe, machines, store, model and data, write the dataset's split and the run's record.

    Raises:
        RecipeError: Something in the recipe, or in what it names, cannot be right.
        StoreError: The store cannot be written.
    """
    started_at = datetime.now(UTC)
    recipe = context.recipe
    for role in ("tpu", "cpu", "worker"):
        context.provider(role)
    _refuse_publication(context)
    store = Store(recipe.store_url())
    store.check_writable()
    _check_free_space(store.root)
    if recipe.model.source.directory is not None:
        check_model_directory(Path(recipe.model.source.directory), recipe.model.maxtext_name)
    evidence: dict[str, Any] = {"stages": [stage.name for stage in context.plan.stages]}
    if recipe.dataset.source.files is not None:
        report = write_split(recipe, Path(split_dir(context.plan.layout)))
        evidence["dataset"] = {"train": report.train_rows, "heldout": report.heldout_rows}
    context.store.write_run(
        RunRecord(
            recipe_name=recipe.name,
            run_id=context.run_id,
            started_at=started_at,
            recipe=recipe.model_dump(mode="json"),
            recipe_digest=recipe.digest(),
            params=dict(context.params),
            versions={
                "python": platform.python_version(),
                "maxtext": recipe.trainer.version,
                "pydantic": version("pydantic"),
            },
        )
    )
    ended_at = datetime.now(UTC)
    record = StageRecord(
        stage="preflight",
        state="done",
        digest=recipe.digest()[:16],
        started_at=started_at,
        ended_at=ended_at,
        seconds=(ended_at - started_at).total_seconds(),
        outputs={"run": str(context.store.run_json)},
        evidence=evidence,
    )
    context.store.write_stage(record)
    return record


def check_model_directory(directory: Path, maxtext_name: str) -> None:
    """Check that a directory holds a model with weights and tokenizer, of the family that the recipe names.

    Raises:
        RecipeError: It does not.
    """
    wrong = _find_model_problem(directory, maxtext_name)
    if wrong:
        raise RecipeError(
            f"model.source.directory: {wrong}",
            resource=str(directory),
            left="nothing was created",
            next_step="point model.source.directory at a model in Hugging Face format, or correct model.maxtext_name",
        )


def _find_model_problem(directory: Path, maxtext_name: str) -> str | None:
    if not directory.is_dir():
        return f"there is no directory {directory}"
    config_path = directory / "config.json"
    if not config_path.exists():
        return f"{directory} has no config.json"
    try:
        model_type = json.loads(config_path.read_text())["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        return f"{config_path} does not say its model_type ({error!r})"
    expected = next((types for start, types in MODEL_TYPES.items() if maxtext_name.startswith(start)), None)
    if expected and model_type not in expected:
        family = " or ".join(expected)
        return f"{directory} holds a {model_type!r} model, but model.maxtext_name {maxtext_name!r} is of {family}"
    if not list(directory.glob("*.safetensors")):
        return f"{directory} has no weights (*.safetensors)"
    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        return f"{directory} has no tokenizer (tokenizer.json or tokenizer.model)"
    return None


def _check_free_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < LEAST_FREE_BYTES:
        raise StoreError(
            f"the disk of the store has {free / 1e9:.1f} GB free; a run needs at least {LEAST_FREE_BYTES / 1e9:.0f} GB",
            resource=str(root),
            left="nothing was created",
            next_step=f"free disk space, or set FINETUNE_STORE to a larger disk; old runs are in {root / 'runs'}",
        )


def _refuse_publication(context: RunContext) -> None:
    publish = context.recipe.publish
    if publish.gcs or publish.hub:
        raise RecipeError(
            "this version checks models but does not publish them yet",
            resource="publish",
            left="nothing was created",
            next_step="remove the section `publish`, and take the model from the store",
        )
