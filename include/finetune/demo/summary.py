"""What the demo prints at the end: what came of the training and where it is, or what failed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import AirflowApi, TaskInstance
from finetune.progress.plot import plot_loss
from finetune.store import RunStore

ERROR_TAIL_LINES = 20
# A task that fails only because another one did.
VERDICT_TASK = "verdict"


def print_success(console: Console, store: RunStore, airflow: AirflowLocal, dag_id: str, run_id: str) -> None:
    """Print the model's figures and answers before and after, and where everything is."""
    check, export = store.read_stage("check_model"), store.read_stage("export_checkpoint")
    if check:
        print_quality(console, check.evidence)
    plot = store.root / "loss.png"
    plot_loss(store.read_events(), plot, title=f"Loss of {store.root.parent.name}")
    places = {
        "model": export.outputs["model"] if export else "none: export_checkpoint left no record",
        "run record": str(store.run_json),
        "loss curve": str(plot),
        "Airflow": run_url(airflow, dag_id, run_id),
        "login": f"{airflow.username} / {airflow.secrets.admin_password}",
    }
    console.print("\nWhere it is", style="bold")
    for name, place in places.items():
        console.print(f"  {name:<12}{escape(place)}", soft_wrap=True)
    if export and (notice := Path(export.outputs["model"]) / "NOTICE").exists():
        console.print(f"\n{escape(notice.read_text().splitlines()[0])} ({notice})", soft_wrap=True)
    console.print("\nAirflow stays up; stop it with: [bold]make stop[/]")


def print_quality(console: Console, evidence: dict[str, Any]) -> None:
    """Print the held-out loss and the prompts' answers, before and after."""
    before, after = evidence["heldout_loss_before"], evidence["heldout_loss_after"]
    if before is not None and after is not None:
        console.print("\nHeld-out loss (nats per token)", style="bold")
        console.print(f"  before {before:.3f}, after [bold]{after:.3f}[/]")
    console.print("\nWhat it answers", style="bold")
    for sample in evidence["samples"]:
        console.print(f"  [bold]{escape(sample['prompt'])}[/]")
        console.print(f"    before: [dim]{escape(one_line(sample['before']))}[/]", soft_wrap=True)
        console.print(f"    after:  [green]{escape(one_line(sample['after']))}[/]", soft_wrap=True)


def print_failure(console: Console, store: RunStore, airflow: AirflowLocal, dag_id: str, run_id: str) -> None:
    """Print what failed and why, and where to look and go on."""
    tasks = airflow.api.task_instances(dag_id, run_id)
    for name in failed_tasks(tasks):
        console.print(f"\n{name} failed", style="bold red")
        console.print(escape(explain(airflow.api, store, dag_id, run_id, tasks[name])), soft_wrap=True)
    console.print(f"\nThe run: {run_url(airflow, dag_id, run_id)}", soft_wrap=True)
    console.print(f"Login: {airflow.username} / {escape(airflow.secrets.admin_password)}", soft_wrap=True)
    console.print("Airflow stays up; stop it with: [bold]make stop[/]")


def failed_tasks(tasks: dict[str, TaskInstance]) -> list[str]:
    """Return the tasks that failed by themselves; the verdict only when nothing else did."""
    failed = sorted(name for name, task in tasks.items() if task.state == "failed")
    return [name for name in failed if name != VERDICT_TASK] or failed


def explain(api: AirflowApi, store: RunStore, dag_id: str, run_id: str, task: TaskInstance) -> str:
    """Return why a task failed: its stage record's words, else the end of its log."""
    record = store.read_stage(task.task_id)
    if record and record.error:
        return record.error
    lines = api.task_log(dag_id, run_id, task.task_id, task.try_number).splitlines()
    return "\n".join(lines[-ERROR_TAIL_LINES:])


def run_url(airflow: AirflowLocal, dag_id: str, run_id: str) -> str:
    """Return the address of a run's page."""
    return f"{airflow.base_url}/dags/{dag_id}/runs/{run_id}"


def one_line(text: str) -> str:
    """Return a text with its line breaks shown."""
    return text.strip().replace("\n", " ⏎ ") or "(nothing)"
