"""The watch beside a training: metrics to events, and an end to a training that goes nowhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from finetune.errors import MachineLost
from finetune.progress.events import MetricsReader, progress_line
from finetune.progress.watch import TrainingWatch
from finetune.stages.context import RunContext
from finetune.stages.runner import StageRunner
from finetune.store import JobRef
from finetune.trainers.maxtext import METRICS_FILE


@dataclass(frozen=True)
class Watched:
    """What one look at the training brought.

    Args:
        state: ``waiting`` for the job, the watch's verdict, or ``ended`` with the job.
        lines: Lines for a person.
        detail: Why, where the training was ended.
    """

    state: str
    lines: list[str]
    detail: str = ""


class TrainingMonitor:
    """Watches the job of a run's ``train`` stage, generation after generation.

    Args:
        context: The run.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.runner = StageRunner(context, "train")
        self._job: JobRef | None = None
        self._offset = 0
        self._forget()

    def look(self) -> Watched:
        """Read what is new, keep it as events, and end the job when it has stalled or diverged."""
        record = self.context.store.read_stage("train")
        if record is None or (record.state == "failed" and record.job is None):
            return Watched("waiting", [])
        if record.state != "running" or record.job is None:
            return Watched("ended", [])
        if record.job != self._job:
            self._forget()
            self._job = record.job
        try:
            status = self.runner.read_file(METRICS_FILE, self._offset)
        except MachineLost:
            return Watched("waiting", [])
        self._offset += len(status.log)
        events = self._reader.feed(status.log)
        # A resumed training repeats steps: they are on record, and a sign of life all the same.
        fresh = self.context.store.append_events(events)
        state = self._watch.observe(events, time.monotonic())
        lines = [progress_line(event, self._watch.seconds_left()) for event in fresh]
        if state in ("stalled", "diverged"):
            self._end_training(record.job, state)
            return Watched(state, lines, self._watch.detail)
        return Watched(state, lines)

    def _forget(self) -> None:
        trainer = self.context.recipe.trainer
        self._offset = 0
        self._reader = MetricsReader(trainer.steps)
        self._watch = TrainingWatch(trainer.stall_timeout_minutes * 60)

    def _end_training(self, job: JobRef, state: str) -> None:
        event = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": "verdict",
            "state": state,
            "detail": self._watch.detail,
            "job": self.runner.log_name(job),
        }
        self.context.store.append_events([event])
        record = self.context.store.read_stage("train")
        if record is not None and record.job == job:
            self.runner.cancel_job(record)
