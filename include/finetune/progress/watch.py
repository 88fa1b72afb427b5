"""What the events of a training mean: starting, running, stalled, diverged."""

from __future__ import annotations

import statistics
from typing import Any, Literal

from finetune.progress.events import format_seconds, is_finite

Verdict = Literal["starting", "running", "stalled", "diverged"]

# The first steps compile: they say nothing about the speed of the others.
COMPILING_STEPS = 2


class TrainingWatch:
    """Judges a training by its events and by the time that passes without any.

    Args:
        stall_seconds: How long no event may come before the training counts as stalled. It must be longer than
            loading and compiling the model takes.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.stall_seconds = stall_seconds
        self.last_step: dict[str, Any] | None = None
        self.detail = "no step yet: loading and compiling"
        self._verdict: Verdict = "starting"
        self._step_seconds: list[float] = []
        self._quiet_since: float | None = None

    def observe(self, events: list[dict[str, Any]], now: float) -> Verdict:
        """Take in new events at time ``now`` (seconds on any steady clock) and return the verdict."""
        if events or self._quiet_since is None:
            self._quiet_since = now
        for event in events:
            self._take(event)
        quiet_seconds = now - self._quiet_since
        if self._verdict in ("starting", "running") and quiet_seconds > self.stall_seconds:
            after = f"after step {self.last_step['step']}" if self.last_step else "before the first step"
            self._verdict = "stalled"
            self.detail = f"no step for {format_seconds(quiet_seconds)} {after}"
        return self._verdict

    def seconds_left(self) -> float | None:
        """Estimate the time to the last step from the median of the steps so far; None before there are any."""
        if not self.last_step or not self._step_seconds:
            return None
        steps_left = int(self.last_step["total_steps"]) - int(self.last_step["step"])
        return steps_left * statistics.median(self._step_seconds)

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            self.last_step = event
            if event["step"] > COMPILING_STEPS and event["step_seconds"] is not None:
                self._step_seconds = [*self._step_seconds[-99:], event["step_seconds"]]
        if not is_finite(event) and self._verdict != "diverged":
            self._verdict = "diverged"
            self.detail = f"the {event['kind']} loss at step {event['step']} is {event['loss']}"
        elif self._verdict == "starting":
            self._verdict = "running"
            self.detail = "steps are coming"
