"""What Airflow and the pipeline cost in time: a run's wall time over the same MaxText commands, run by hand.

Both sides find MaxText installed and compiled by a first run. The run counts from the start of its first task to the
end of its last, checks and deletion included. By hand it is MaxText's three commands, one after the other; the run does
not convert again what an earlier run has converted, so the ratio without the conversion is printed as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.demo import wait_for_dag
from finetune.plan import Plan, make_plan
from finetune.recipe import load_recipe
from finetune.stages.context import recipe_path
from finetune.stages.job_io import job_environment
from finetune.steps import render_script

RUN_TIMEOUT_SECONDS = 3600.0
CONVERSION = "conversion"
MAXTEXT_STEPS = (CONVERSION, "training", "to_huggingface")
PROMISED_RATIO = 1.15


def run_in_airflow(airflow: AirflowLocal, dag_id: str) -> dict[str, float]:
    """Run a recipe's DAG; returns the seconds of each task, and of the whole as ``run``."""
    run_id = airflow.api.trigger(dag_id, run_id=f"bench-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}")
    run = airflow.api.wait_for_run(dag_id, run_id, RUN_TIMEOUT_SECONDS)
    tasks = airflow.api.task_instances(dag_id, run_id)
    if run.state != "success":
        sys.exit(
            f"the run {run_id} ended as {run.state}: {[task for task in tasks.values() if task.state != 'success']}"
        )
    spans = {
        name: (task.start_date, task.end_date)
        for name, task in tasks.items()
        if task.start_date and task.end_date
    }
    whole = max(end for _, end in spans.values()) - min(start for start, _ in spans.values())
    seconds = {name: (end - start).total_seconds() for name, (start, end) in spans.items()}
    return seconds | {"run": whole.total_seconds()}


def run_by_hand(plan: Plan) -> dict[str, float]:
    """Run the MaxText commands of a plan in a shell; returns the seconds of each."""
    seconds = {}
    for stage in plan.stages:
        for step in stage.steps:
            if step.name in MAXTEXT_STEPS:
                script = 'NEW="$PWD/new"\n' + render_script([replace(step, output=None)], stage.env)
                seconds[step.name] = run_script(script, job_environment(stage))
    return seconds


def run_script(script: str, environment: dict[str, str]) -> float:
    """Run a script in an empty folder; returns its seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"by hand it failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.perf_counter() - began


def main() -> None:
    """Measure the demo's recipe and print the ratio."""
    console = Console()
    recipe = load_recipe(recipe_path(settings.demo_recipe()))
    dag_id = f"finetune_{recipe.name}"
    with AirflowLocal.from_settings() as airflow:
        wait_for_dag(airflow, dag_id)
        airflow.api.set_paused(dag_id, paused=False)
        first = run_in_airflow(airflow, dag_id)
        second = run_in_airflow(airflow, dag_id)
    by_hand = run_by_hand(make_plan(recipe, f"by-hand-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"))
    table = Table("", "seconds", title=f"{recipe.name}, second run")
    for name, value in (second | {f"by hand: {name}": value for name, value in by_hand.items()}).items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)
    hand, converted = sum(by_hand.values()), by_hand[CONVERSION]
    console.print(f"first run {first['run']:.0f} s, second {second['run']:.0f} s, by hand {hand:.0f} s")
    console.print(f"second run over by hand: {second['run'] / hand:.2f} (promised: {PROMISED_RATIO})")
    console.print(f"second run over by hand without the conversion: {second['run'] / (hand - converted):.2f}")


if __name__ == "__main__":
    main()
