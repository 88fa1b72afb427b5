"""Follow a run: what Airflow says of its tasks and the store of its stages, told as it happens."""

from __future__ import annotations

import time
from typing import Any

from finetune.demo.api import AirflowApi, DagRun, TaskInstance
from finetune.demo.display import Display
from finetune.progress.events import progress_line
from finetune.progress.watch import TrainingWatch
from finetune.store import RunStore, StageRecord

POLL_SECONDS = 1.0
# Airflow's words for a task that has begun and not ended; between tries it waits for the next one.
BEGUN_STATES = frozenset({"running", "deferred", "restarting", "up_for_retry", "up_for_reschedule"})
TRAINING_TASK = "train"
# The scheduler starts a run within a second or two unless the DAG's only place is taken.
QUEUE_PATIENCE_SECONDS = 10.0


class RunFollower:
    """Tells a run's stages on a display.

    Args:
        api: Of the Airflow that runs it.
        dag_id: Of the recipe's DAG.
        run_id: Of the run.
        store: The run's part of the store.
        display: Where to show it.
    """

    def __init__(self, api: AirflowApi, dag_id: str, run_id: str, store: RunStore, display: Display) -> None:
        self.api = api
        self.dag_id = dag_id
        self.run_id = run_id
        self.store = store
        self.display = display
        self._started = time.monotonic()
        self._told_queue = False
        self._begun: dict[str, float] = {}
        self._ended: set[str] = set()
        self._training = TrainingProgress()

    def follow(self) -> DagRun:
        """Show everything until the run and its tasks have ended; return the run."""
        while True:
            run = self.api.dag_run(self.dag_id, self.run_id)
            self.look_at_queue(run)
            tasks = self.api.task_instances(self.dag_id, self.run_id)
            self.look(tasks)
            if run.is_finished and all(task.is_finished for task in tasks.values()):
                return run
            time.sleep(POLL_SECONDS)

    def look_at_queue(self, run: DagRun) -> None:
        """Say so, once, when the run has to wait for its turn."""
        waits = run.state == "queued" and time.monotonic() - self._started > QUEUE_PATIENCE_SECONDS
        if waits and not self._told_queue:
            self._told_queue = True
            self.display.say("Waiting: another run of this recipe has not ended yet.")

    def look(self, tasks: dict[str, TaskInstance]) -> None:
        """Show what has changed since the last look."""
        for task in sorted(tasks.values(), key=end_order):
            name = task.task_id
            if name in self._ended:
                continue
            if task.is_finished:
                self._show_end(task)
            elif task.state in BEGUN_STATES:
                self._show_begin(name)
        if TRAINING_TASK in self._begun and TRAINING_TASK not in self._ended:
            self._training.take(self.store.read_events())
            self.display.update_stage(TRAINING_TASK, self._training.note, self._training.share)

    def _show_begin(self, name: str) -> None:
        if name not in self._begun:
            self._begun[name] = time.monotonic()
            self.display.start_stage(name)

    def _show_end(self, task: TaskInstance) -> None:
        name, state = task.task_id, task.state or ""
        self._ended.add(name)
        if state in ("success", "failed"):
            self._show_begin(name)
        record = self.store.read_stage(name)
        self.display.end_stage(name, state, self._seconds(task, record), describe_end(state, record))

    def _seconds(self, task: TaskInstance, record: StageRecord | None) -> float | None:
        """Return the longer of what Airflow counts for the last try and the stage's record over several."""
        if task.state not in ("success", "failed"):
            return None
        counted = [record.seconds] if record and record.seconds is not None else []
        if task.start_date and task.end_date:
            counted.append((task.end_date - task.start_date).total_seconds())
        return max(counted, default=time.monotonic() - self._begun[task.task_id])


class TrainingProgress:
    """How far a training is, from its events: a note for a person, and the share that is done."""

    def __init__(self) -> None:
        self.note = "loading and compiling the model"
        self.share: float | None = None
        self._watch = TrainingWatch(stall_seconds=float("inf"))
        self._seen = 0
        self._last_step_at = time.monotonic()

    def take(self, events: list[dict[str, Any]]) -> None:
        """Take in all events of the run so far; those that were there before are passed over."""
        fresh = [event for event in events[self._seen :] if event["kind"] in ("step", "eval")]
        self._seen = len(events)
        now = time.monotonic()
        self._watch.observe(fresh, now)
        if any(event["kind"] == "step" for event in fresh):
            self._last_step_at = now
        step = self._watch.last_step
        if step is None:
            return
        self.share = step["step"] / step["total_steps"]
        if step["step"] >= step["total_steps"]:
            self.note = progress_line(step, None) + ", writing the checkpoint"
        else:
            self.note = progress_line(step, self._seconds_left(now))

    def _seconds_left(self, now: float) -> float | None:
        """Return the estimate at the last step, less the time that has passed since."""
        estimate = self._watch.seconds_left()
        return None if estimate is None else max(0.0, estimate - (now - self._last_step_at))


def end_order(task: TaskInstance) -> tuple[float, str]:
    """Return the key that puts tasks in the order in which they ended, unfinished ones last."""
    return (task.end_date.timestamp() if task.end_date else float("inf"), task.task_id)


def describe_end(state: str, record: StageRecord | None) -> str:
    """Return what is worth saying of an ended stage beside its state and its time."""
    if record is None or state != "success":
        return ""
    if record.state == "reused":
        return f"reused: {record.reason}"
    if record.stage == TRAINING_TASK:
        return f"{record.evidence['steps']} steps, loss {record.evidence['last_loss']:.3f}"
    return ""
