"""A real Airflow with recipes of the tests' own, and one such recipe with its trainer, its runs and its machines."""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import AirflowApi, TaskInstance
from finetune.errors import PipelineError
from finetune.machines.processes import MARK
from finetune.store import RunStore, StageRecord, Store
from tests.fakes.recipes import write_stand_in_recipe
from tests.fakes.trainer import FAKE_MAXTEXT, FakeTrainer

# Generous: on a busy machine with two cores, a dozen runs side by side take their time.
PATIENCE_SECONDS = 300
# A dozen tests that ask the API server twice a second keep one of the cores busy.
POLL_SECONDS = 2.0
RUN = "one"


def wait_for[Value](what: str, look: Callable[[], Value | None]) -> Value:
    """Look again and again until something is found, and return that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(POLL_SECONDS)
    return found


@dataclass(frozen=True)
class Line:
    """One recipe in Airflow, with a store, a trainer and machines of its own."""

    name: str
    airflow: AirflowLocal
    store_url: str
    trainer: FakeTrainer

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api

    @property
    def dag_id(self) -> str:
        return f"finetune_{self.name}"

    # Steering

    def wait_for_dag(self) -> None:
        """Wait until Airflow knows the recipe."""
        wait_for(f"the DAG {self.dag_id}", lambda: self.api.dag(self.dag_id))

    def backfill(self, start: datetime, end: datetime) -> None:
        """Ask for the scheduled runs between two times that have passed."""
        self.wait_for_dag()
        dates = {"from_date": start.isoformat(), "to_date": end.isoformat()}
        self.api._call("POST", "/api/v2/backfills", {"dag_id": self.dag_id, **dates})

    def unpause(self) -> None:
        """Wait until Airflow knows the recipe, and let it run."""
        self.wait_for_dag()
        self.api.set_paused(self.dag_id, paused=False)

    def trigger(self, conf: Mapping[str, Any] | None = None, run: str = RUN) -> None:
        """Start a run."""
        self.unpause()
        self.api.trigger(self.dag_id, conf, run_id=run)

    def wait(self, run: str = RUN) -> str:
        """Wait until a run and all its tasks have ended; returns the run's state."""

        def find_end() -> str | None:
            state = self.api.dag_run(self.dag_id, run)
            ended = state.is_finished and all(task.is_finished for task in self.tasks(run).values())
            return state.state if ended else None

        return wait_for(f"{self.name}: the end of run {run}", find_end)

    def clear(self, task: str, **options: bool) -> list[str]:
        """Clear one task of the run; the default options are those of Airflow's UI."""
        return sorted(self.api.clear(self.dag_id, RUN, [task], **options))

    def wait_for_call(self, command: str, count: int = 1) -> dict[str, Any]:
        """Wait until the trainer was started so often; returns what is known of that start."""
        calls = wait_for(
            f"{self.name}: {command}, time {count}",
            lambda: len(found := self.trainer.calls(command)) >= count and found,
        )
        return calls[count - 1]

    def wait_for_step(self, step: int) -> None:
        """Wait until a step of the training is on record."""
        wait_for(f"{self.name}: step {step}", lambda: step in self.steps())

    def wait_for_state(self, task: str, *states: str) -> None:
        """Wait until a task of the run is in one of these states."""
        wait_for(f"{self.name}: {task} {states}", lambda: self.states()[task] in states)

    def kill_task(self, task: str) -> None:
        """Kill a task's own process."""
        pid = self.tasks()[task].pid
        assert pid is not None
        psutil.Process(pid).kill()

    @contextlib.contextmanager
    def events_locked(self) -> Iterator[None]:
        """Keep everybody from writing events: a task that takes a training's result waits."""
        path = self.store().events_path
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # What Airflow says

    def tasks(self, run: str = RUN) -> dict[str, TaskInstance]:
        return self.api.task_instances(self.dag_id, run)

    def states(self, run: str = RUN) -> dict[str, str | None]:
        return {name: task.state for name, task in self.tasks(run).items()}

    def log(self, task: str) -> str:
        """Return the log of a task's latest try."""
        return self.api.task_log(self.dag_id, RUN, task, self.tasks()[task].try_number)

    def logs(self, task: str) -> str:
        """Return the logs of all tries of a task."""
        tries = range(1, self.tasks()[task].try_number + 1)
        return "\n".join(self.api.task_log(self.dag_id, RUN, task, number) for number in tries)

    def printed_steps(self) -> list[int]:
        """Return the steps that the trainer's lines in the logs of ``train`` name, each as often as it is named."""
        return [int(step) for step in re.findall(r"completed step: (\d+),", self.logs("train"))]

    # What the pipeline says

    def store(self, run: str = RUN) -> RunStore:
        return Store(self.store_url).run(self.name, run)

    def stage(self, name: str, run: str = RUN) -> StageRecord:
        record = self.store(run).read_stage(name)
        assert record is not None, f"{name} left no record"
        return record

    def steps(self, run: str = RUN) -> list[int]:
        """Return the steps on record, in the order of the file."""
        return [event["step"] for event in self.store(run).read_events() if event["kind"] == "step"]

    def explain(self, run: str = RUN) -> str:
        """Return what a reader of a failed test wants to know."""
        with contextlib.suppress(PipelineError):
            errors = [
                f"{stage.stage}: {stage.error}" for stage in self.store(run).read_stages() if stage.error
            ]
            return "\n".join([f"{self.name}: {self.states(run)}", *errors])
        return f"{self.name}: Airflow does not answer"

    # What is left

    def machines(self) -> list[Path]:
        folder = self.airflow.home / "machines"
        return sorted(folder.glob(f"{self.name}-*")) if folder.is_dir() else []

    def processes(self) -> list[psutil.Process]:
        """Return what runs on the recipe's machines."""
        return list(find_marked(f"{self.name}-"))

    def trainer_process(self) -> psutil.Process:
        """Return the stand-in trainer's process."""

        def find() -> psutil.Process | None:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    if str(FAKE_MAXTEXT) in process.cmdline():
                        return process
            return None

        return wait_for(f"{self.name}: the trainer's process", find)

    def assert_nothing_left(self) -> None:
        """Assert that no machine, no process and no stray folder is left."""
        assert self.machines() == []
        assert self.processes() == []
        strays = [path for path in self.store().root.rglob("*") if path.name.endswith((".new", ".tmp"))]
        assert strays == []

    def assert_green(self, run: str = RUN) -> None:
        """Assert that a run is a success in every respect, training included, and left nothing."""
        assert self.wait(run) == "success", self.explain(run)
        assert set(self.states(run).values()) == {"success"}, self.explain(run)
        total = self.store(run).read_run().recipe["trainer"]["steps"]
        assert self.steps(run) == list(range(1, total + 1))
        self.assert_nothing_left()


def find_marked(prefix: str) -> Iterator[psutil.Process]:
    """Find the processes of machines whose name begins so."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.environ().get(MARK, "").startswith(prefix)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                yield process


class Lab:
    """A real Airflow, and recipes in it.

    Args:
        root: Where all of it lives.
        database_url: The metadata database; None for SQLite.
    """

    def __init__(self, root: Path, database_url: str | None = None) -> None:
        self.root = root
        self.recipes = root / "recipes"
        self.recipes.mkdir(parents=True)
        settings = {"FINETUNE_RECIPES_DIR": str(self.recipes)}
        self.airflow = AirflowLocal(root / "home", env=settings, database_url=database_url)

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api

    def line(self, name: str, changes: Mapping[str, Any] | None = None, **faults: Any) -> Line:
        """Add a recipe of ten steps, with changes by dotted path, whose trainer has faults."""
        recipe, _, trainer = write_stand_in_recipe(self.root, name, changes)
        trainer.set(**faults)
        return Line(name, self.airflow, recipe.store_url(), trainer)

    @contextlib.contextmanager
    def on_sqlite(self) -> Iterator[Lab]:
        """Run another Airflow beside this one, on SQLite, as ``make demo`` starts it."""
        other = Lab(self.root / "sqlite")
        with other.airflow:
            yield other

    def kill(self, component: str) -> None:
        """Kill one of Airflow's components, and only its own process, as the kernel does when memory runs out."""
        process = self.airflow.component(component)
        assert process is not None
        process.kill()
        process.wait()

    def respawn(self, component: str) -> None:
        """Start a killed component again, as whatever supervises it would, and wait until all are healthy."""
        running = self.airflow.running
        assert running is not None
        launcher = self.airflow._launcher(running)
        since = datetime.now(UTC)
        new = launcher.spawn(component)
        components = [new if one.name == component else one for one in running.components]
        self.airflow._record(running.model_copy(update={"components": components}))
        launcher.wait_until_healthy(components, since)
