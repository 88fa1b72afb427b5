"""Training events: what a trainer's metrics file says, in one vocabulary for every trainer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any


class MetricsReader:
    """Turns the bytes of MaxText's ``metrics_file`` (a JSON object in each line) into events.

    Feed it chunks in order; a line cut by a chunk's end waits for the rest. Rows look like
    ``{"step": 3, "learning/loss": 2.1, "perf/step_time_seconds": 7.5, ...}`` or ``{"step": 40, "eval/avg_loss": 2.0}``.

    A ``step`` event carries: step (from 1), total_steps, loss (nats per token), learning_rate, grad_norm, step_seconds,
    tokens_per_second_per_device, tflops_per_second_per_device, counted_tokens. An ``eval`` event carries: step, loss,
    counted_tokens.
    """

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._rest = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Return the events of the lines that this chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [event for line in lines if line.strip() for event in self._read_row(json.loads(line))]

    def _read_row(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        head = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
        if "learning/loss" in row:
            yield head | {
                "kind": "step",
                "step": int(row["step"]),
                "total_steps": self.total_steps,
                "loss": row["learning/loss"],
                "learning_rate": row.get("learning/current_learning_rate"),
                "step_seconds": row.get("perf/step_time_seconds"),
                "tokens_per_second_per_device": row.get("perf/per_device_tokens_per_sec"),
                "tflops_per_second_per_device": row.get("perf/per_device_tflops_per_sec"),
                "counted_tokens": row.get("learning/total_weights"),
            }
        if "eval/avg_loss" in row:
            yield head | {
                "kind": "eval",
                "step": int(row["step"]),
                "loss": row["eval/avg_loss"],
                "counted_tokens": row.get("eval/total_weights"),
            }


def is_finite(event: dict[str, Any]) -> bool:
    """Whether the event's loss is a number that training can go on from."""
    return math.isfinite(event["loss"])


def progress_line(event: dict[str, Any], seconds_left: float | None) -> str:
    """Return one line for a person: step, total, loss, speed, time left."""
    if event["kind"] == "eval":
        return f"step {event['step']}: held-out loss {event['loss']:.3f}"
    speed = event.get("tokens_per_second_per_device")
    parts = [f"step {event['step']}/{event['total_steps']}", f"loss {event['loss']:.3f}"]
    if speed is not None:
        parts.append(f"{speed:,.0f} tokens/s/device")
    if seconds_left is not None:
        parts.append(f"about {format_seconds(seconds_left)} left")
    return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """Return a duration as ``1h 02m``, ``3m 20s`` or ``12 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    if whole >= 60:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole} s"
