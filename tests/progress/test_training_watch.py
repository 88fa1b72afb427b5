"""What a training's events, and the time without any, mean."""

from __future__ import annotations

import math
from typing import Any

import pytest

from finetune.progress.watch import TrainingWatch


def step(number: int, loss: float = 2.0, seconds: float | None = 10.0) -> dict[str, Any]:
    """Return the event of one of 100 steps."""
    return {"kind": "step", "step": number, "total_steps": 100, "loss": loss, "step_seconds": seconds}


def test_a_training_is_starting_until_its_first_step() -> None:
    watch = TrainingWatch(stall_seconds=60)
    assert watch.observe([], now=1000.0) == "starting"
    assert watch.observe([], now=1060.0) == "starting"
    assert watch.observe([step(1)], now=1060.0) == "running"


def test_one_that_never_makes_a_step_has_stalled() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([], now=1000.0)
    assert watch.observe([], now=1060.1) == "stalled"
    assert watch.detail == "no step for 1m 00s before the first step"


def test_one_that_makes_no_more_step_has_stalled() -> None:
    watch = TrainingWatch(stall_seconds=600)
    watch.observe([step(1)], now=0.0)
    watch.observe([step(2)], now=500.0)
    assert watch.observe([], now=1100.0) == "running"
    assert watch.observe([], now=1100.1) == "stalled"
    assert watch.detail == "no step for 10m 00s after step 2"


def test_each_step_gives_it_the_whole_time_again() -> None:
    watch = TrainingWatch(stall_seconds=60)
    states = [watch.observe([step(number)], now=number * 59.0) for number in range(1, 20)]
    assert set(states) == {"running"}


def test_an_evaluation_is_a_sign_of_life() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([step(1)], now=0.0)
    watch.observe([{"kind": "eval", "step": 1, "loss": 2.0}], now=50.0)
    assert watch.observe([], now=100.0) == "running"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_divergence_from_then_on(loss: float) -> None:
    watch = TrainingWatch(stall_seconds=60)
    assert watch.observe([step(1), step(2, loss=loss), step(3)], now=0.0) == "diverged"
    assert watch.detail == f"the step loss at step 2 is {loss}"
    assert watch.observe([step(4)], now=1.0) == "diverged"


def test_the_first_divergence_is_the_one_that_is_told() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([step(2, loss=math.nan), step(3, loss=math.nan)], now=0.0)
    assert watch.detail == "the step loss at step 2 is nan"


def test_nothing_is_said_of_the_time_left_before_the_speed_is_known() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([], now=0.0)
    assert watch.seconds_left() is None
    watch.observe([step(1, seconds=50.0), step(2, seconds=50.0)], now=1.0)
    assert watch.seconds_left() is None


def test_the_time_left_is_that_of_a_usual_step_for_each_step_left() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([step(1, seconds=50.0), step(2, seconds=50.0)], now=0.0)
    watch.observe([step(3, seconds=4.0), step(4, seconds=90.0), step(5, seconds=6.0)], now=1.0)
    assert watch.seconds_left() == 95 * 6.0


def test_the_time_left_follows_a_training_that_changes_its_speed() -> None:
    watch = TrainingWatch(stall_seconds=60)
    watch.observe([step(number, seconds=1.0) for number in range(1, 40)], now=0.0)
    watch.observe([step(40, seconds=8.0)] * 100, now=1.0)
    assert watch.seconds_left() == 60 * 8.0


def test_a_step_without_its_seconds_counts_as_a_step() -> None:
    watch = TrainingWatch(stall_seconds=60)
    assert watch.observe([step(3, seconds=None)], now=0.0) == "running"
    assert watch.seconds_left() is None
