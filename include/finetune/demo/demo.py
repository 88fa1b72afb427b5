"""The demo: one recipe through Airflow on this machine, followed from the trigger to what came out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType

from rich.console import Console

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import AirflowApiError, Dag, WaitTimeout, wait_for
from finetune.demo.display import Display
from finetune.demo.follow import RunFollower
from finetune.demo.shutdown import DAG_PREFIX, ActiveRun, kill_everything, shut_down
from finetune.demo.summary import print_failure, print_success, run_url
from finetune.errors import PipelineError
from finetune.recipe import load_recipe
from finetune.stages.context import recipe_path
from finetune.store import Store

# A new recipe is seen within airflow_config.REFRESH_SECONDS and parsed soon after.
DAG_TIMEOUT_SECONDS = 60.0
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FollowingFailed(PipelineError):
    """Airflow stopped answering while a run was followed."""


class Demo:
    """One run of a recipe, from starting Airflow to what came out.

    Args:
        airflow: The Airflow to start, or to use where it runs.
        recipe_name: Of the recipe.
        console: Where to print.
    """

    def __init__(self, airflow: AirflowLocal, recipe_name: str, console: Console) -> None:
        self.airflow = airflow
        self.recipe_name = recipe_name
        self.console = console
        self.dag_id = f"{DAG_PREFIX}{recipe_name}"
        self.run_id = f"demo-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"

    def run(self) -> int:
        """Run it and return the exit code: 0 with a model, 1 when the run failed, 130 when interrupted."""
        try:
            with interruptible():
                return self.start_and_follow()
        except KeyboardInterrupt:
            return self.stop_all()
        except AirflowApiError as error:
            raise FollowingFailed(
                f"the run cannot be followed any longer: {error.cause}",
                resource=error.resource,
                left="the run, if Airflow still runs",
                next_step="make status; if Airflow does not run, another make stop has ended it and the run",
            ) from error

    def start_and_follow(self) -> int:
        """Start Airflow unless it runs, trigger the recipe, follow the run, and print what came of it."""
        recipe = load_recipe(recipe_path(self.recipe_name))
        airflow, console = self.airflow, self.console
        with console.status("Starting Airflow"):
            fresh = airflow.start()
        console.print(f"Airflow {'is up' if fresh else 'was up already'}: {airflow.base_url}")
        with console.status(f"Waiting for Airflow to read {self.dag_id}"):
            dag = wait_for_dag(airflow, self.dag_id)
        if dag.is_paused:
            airflow.api.set_paused(self.dag_id, paused=False)
        airflow.api.trigger(self.dag_id, run_id=self.run_id)
        store = Store(recipe.store_url()).run(self.recipe_name, self.run_id)
        url = run_url(airflow, self.dag_id, self.run_id)
        console.print(f"[bold]{self.recipe_name}[/]: {url}\n", soft_wrap=True)
        with Display(console) as display:
            run = RunFollower(airflow.api, self.dag_id, self.run_id, store, display).follow()
        if run.state == "success":
            print_success(console, store, airflow, self.dag_id, self.run_id)
            return 0
        print_failure(console, store, airflow, self.dag_id, self.run_id)
        return 1

    def stop_all(self) -> int:
        """End the run and Airflow in good order; on a second signal at once. Return the exit code."""
        self.console.print("\nStopping everything. Ctrl-C once more: at once.", style="yellow")
        try:
            with interruptible():
                shut_down(self.airflow, self.console)
        except KeyboardInterrupt:
            with uninterruptible():
                self.console.print("\nKilling everything.", style="red")
                kill_everything(self.airflow, [ActiveRun(self.dag_id, self.run_id)])
        self.console.print("Nothing of it is left running.")
        return INTERRUPTED_EXIT_CODE


def wait_for_dag(airflow: AirflowLocal, dag_id: str) -> Dag:
    """Wait until Airflow has parsed the recipe's DAG.

    Raises:
        PipelineError: It has not; the error carries the import errors.
    """
    try:
        return wait_for(f"the DAG {dag_id}", lambda: airflow.api.dag(dag_id), DAG_TIMEOUT_SECONDS)
    except WaitTimeout as error:
        failures = airflow.api.import_errors()
        traces = "\n".join(f"--- {failure.filename}\n{failure.stack_trace}" for failure in failures)
        raise PipelineError(
            f"Airflow does not know the DAG {dag_id} after {DAG_TIMEOUT_SECONDS:g} s.\n{traces}",
            resource=str(airflow.dags),
            left="Airflow, which stays up",
            next_step="mend what stands above, then repeat the command",
        ) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt inside on Ctrl-C, on TERM and on a closed terminal."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Let no signal that ends things end what is inside."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
