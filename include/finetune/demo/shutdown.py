"""Stop everything: the runs that are going on, their machines, and Airflow; prove that nothing is left."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from rich.console import Console

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import WaitTimeout
from finetune.demo.checks import listens
from finetune.errors import PipelineError
from finetune.machines.local import LocalMachineProvider
from finetune.machines.processes import describe_process, find_processes

DAG_PREFIX = "finetune_"
# Ending a job takes up to 5 s, noticing it and running the teardown some more; a busy machine gets plenty.
TEARDOWN_TIMEOUT_SECONDS = 120.0


class LeftRunning(PipelineError):
    """Something that was to be stopped still runs."""


@dataclass(frozen=True)
class ActiveRun:
    """A run of a recipe that has not ended."""

    dag_id: str
    run_id: str

    @property
    def labels(self) -> dict[str, str]:
        """The labels that its machines carry."""
        return {"recipe": self.dag_id.removeprefix(DAG_PREFIX), "run": self.run_id}


def find_active_runs(airflow: AirflowLocal) -> list[ActiveRun]:
    """Return the recipes' runs that have not ended; none where no Airflow runs that could be asked."""
    running = airflow.running
    if running is None or not listens(running.components, "api-server", running.port):
        return []
    runs = airflow.api.dag_runs(states=("queued", "running"))
    return [ActiveRun(run.dag_id, run.dag_run_id) for run in runs if run.dag_id.startswith(DAG_PREFIX)]


def shut_down(airflow: AirflowLocal, console: Console) -> bool:
    """Mark the runs that are going on as failed, wait for their teardown, and stop Airflow.

    Returns:
        Whether anything was running.

    Raises:
        LeftRunning: A process or a machine survived.
    """
    runs: list[ActiveRun] = []
    try:
        runs = find_active_runs(airflow)
        for run in runs:
            console.print(
                f"Ending run {run.run_id} of {run.dag_id}, with its job and machine", soft_wrap=True
            )
            airflow.api.set_run_state(run.dag_id, run.run_id, "failed")
        for run in runs:
            airflow.api.wait_for_run(run.dag_id, run.run_id, TEARDOWN_TIMEOUT_SECONDS)
    except WaitTimeout as error:
        console.print(f"The teardown is not done: {error.cause}", style="yellow", soft_wrap=True)
    except PipelineError as error:
        console.print(f"Airflow could not end the runs itself: {error.cause}", style="yellow", soft_wrap=True)
    stopped = airflow.stop()
    prove_nothing_left(airflow, runs)
    return stopped


def kill_everything(airflow: AirflowLocal, runs: list[ActiveRun]) -> None:
    """Kill Airflow's processes, then delete the runs' local machines with all that runs there.

    Raises:
        LeftRunning: A process or a machine survived.
    """
    airflow.kill()
    prove_nothing_left(airflow, runs)


def prove_nothing_left(airflow: AirflowLocal, runs: list[ActiveRun]) -> None:
    """Delete what a teardown has left of the runs' local machines, and prove that no process remains.

    Raises:
        LeftRunning: Something does.
    """
    provider = LocalMachineProvider(airflow.home / "machines")
    for run in runs:
        for machine in provider.find(run.labels):
            with contextlib.suppress(PipelineError):
                provider.delete(machine)
    left = [describe_process(process) for process in airflow.processes()]
    left += [line for run in runs for line in provider.leftovers(run.labels)]
    if left:
        raise LeftRunning(
            f"{len(left)} things still run or stand after stopping",
            left="; ".join(left),
            next_step="end them by hand, then: make stop",
        )


def describe_orphans(airflow: AirflowLocal) -> list[str]:
    """Return, in words, the local machines that are still there although no Airflow runs.

    They belong to a run in the foreground, or to runs that an Airflow which was killed had not ended.
    """
    provider = LocalMachineProvider(airflow.home / "machines")
    return [
        f"Not Airflow's to end: machine {machine.name} of run {machine.labels.get('run')}, with"
        f" {len(find_processes(machine.name))} processes. If an Airflow that was killed had started that run,"
        " then make start takes it up again, and make stop ends it."
        for machine in provider.find({})
    ]
