"""From a recipe to its DAG."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule

from finetune.recipe import Recipe, load_recipe, load_recipes, run_params
from finetune.recipe.load import SUFFIXES
from finetune_airflow.operators.ends import (
    CreateMachineOperator,
    DeleteMachineOperator,
    PreflightOperator,
    VerdictOperator,
)
from finetune_airflow.operators.stage import StageOperator
from finetune_airflow.sensors.training import TrainingSensor
from finetune_airflow.timetable import NightlyTimetable

DAG_PREFIX = "finetune_"
RETRIES = 2
RETRY_DELAY = timedelta(seconds=10)


def make_dags(folder: Path, wanted: str | None) -> dict[str, DAG]:
    """Return the DAG of each good recipe of a folder by its id, or only the wanted one.

    Raises:
        RecipeError: The wanted one's recipe cannot be right.
    """
    paths = [folder / f"{(wanted or '').removeprefix(DAG_PREFIX)}{suffix}" for suffix in SUFFIXES]
    alone = next((path for path in paths if path.is_file()), None)
    loaded = {alone: load_recipe(alone)} if alone else load_recipes(folder)
    dags = [make_dag(recipe, path) for path, recipe in loaded.items() if isinstance(recipe, Recipe)]
    return {dag.dag_id: dag for dag in dags}


def make_dag(recipe: Recipe, recipe_path: Path) -> DAG:
    """Return the DAG of a recipe: its stages between a setup that makes machines and a teardown that deletes them.

    No ``dagrun_timeout``: it skips teardowns. The limits are the stages' own.
    """
    params = run_params(recipe)
    dag = DAG(
        dag_id=f"{DAG_PREFIX}{recipe.name}",
        description=recipe.description,
        schedule=NightlyTimetable(recipe.schedule, timezone="UTC") if recipe.schedule else None,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params={name: Param(param.default, **param.schema()) for name, param in params.items()},
        tags=["finetune", recipe.trainer.kind],
        default_args={
            "owner": recipe.owner,
            "retries": RETRIES,
            "retry_delay": RETRY_DELAY,
        },
        doc_md=f"{recipe.description}\n\nRecipe: `{recipe_path}`",
    )
    with dag:
        _add_tasks({"recipe_path": str(recipe_path), "param_names": list(params)})
    return dag


def _add_tasks(of_recipe: dict[str, Any]) -> None:
    """Add the tasks to the current DAG, in the shape of setups and teardowns that never leaks and never lies.

    ``delete_machine`` is a teardown of ``preflight`` too, so that it runs when ``create_machine`` failed half-way.
    ``verdict`` is the only leaf, so that the run is green only if it is. ``watch_training`` runs beside ``train``, but
    stands after it, so that clearing a failed training also clears the watch, which the second training needs as well.
    """
    preflight = PreflightOperator(task_id="preflight", **of_recipe)
    create = CreateMachineOperator(task_id="create_machine", **of_recipe)
    install, convert, train, export, check = (
        StageOperator(task_id=stage, **of_recipe)
        for stage in ("install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model")
    )
    watch = TrainingSensor(task_id="watch_training", trigger_rule=TriggerRule.ALWAYS, **of_recipe)
    delete = DeleteMachineOperator(task_id="delete_machine", retries=5, **of_recipe)
    verdict = VerdictOperator(task_id="verdict", **of_recipe)
    delete.as_teardown(setups=[preflight, create])
    verdict.as_teardown(setups=[preflight], on_failure_fail_dagrun=True)
    preflight >> create >> install >> convert >> train >> [export, watch]
    export >> [check, delete]
    [check, watch, delete] >> verdict
