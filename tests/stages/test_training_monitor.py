"""The watch beside a training: what it shows, what it keeps, and when it ends the job."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from finetune.errors import TrainingDiverged, TrainingStalled
from finetune.stages import watch
from finetune.stages.runner import StageRunner
from finetune.stages.teardown import create_machines
from finetune.stages.watch import TrainingMonitor
from tests.stages.conftest import Bench

Wait = Callable[[Callable[[], object], str], None]
STALL_MINUTES = 30


class Clock:
    """A steady clock that a test puts forward."""

    def __init__(self) -> None:
        self.skipped_seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_seconds

    def skip(self, minutes: float) -> None:
        self.skipped_seconds += minutes * 60


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the watch."""
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    return clock


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """A bench with a run whose training can begin, with a machine."""
    bench.make_ready()
    create_machines(bench.context())
    return bench


def begin(bench: Bench, wait_until: Wait, **faults: object) -> StageRunner:
    """Start the training and wait for its first start of the trainer."""
    bench.trainer.set(**faults)
    runner = StageRunner(bench.context(), "train")
    before = len(bench.trainer.calls("train"))
    runner.begin()
    wait_until(lambda: len(bench.trainer.calls("train")) > before, "the trainer")
    return runner


def test_it_waits_for_a_job_to_look_at(bench: Bench) -> None:
    assert TrainingMonitor(bench.context()).look().state == "waiting"


def test_it_shows_each_step_once(ready: Bench, wait_until: Wait) -> None:
    begin(ready, wait_until, hold_at_step=4)
    monitor = TrainingMonitor(ready.context())
    lines: list[str] = []
    wait_until(lambda: lines.extend(monitor.look().lines) or len(lines) == 3, "three lines")
    assert lines[2].startswith("step 3/10, loss 5.704, 512 tokens/s/device")
    assert monitor.look().lines == []
    assert ready.steps() == [1, 2, 3]


def test_one_that_begins_late_shows_only_what_no_other_has_shown(ready: Bench, wait_until: Wait) -> None:
    begin(ready, wait_until, hold_at_step=4)
    first = TrainingMonitor(ready.context())
    wait_until(lambda: first.look() and ready.steps() == [1, 2, 3], "three steps")
    assert TrainingMonitor(ready.context()).look().lines == []
    assert ready.steps() == [1, 2, 3]


def test_it_ends_with_the_training(ready: Bench, wait_until: Wait) -> None:
    runner = begin(ready, wait_until)
    monitor = TrainingMonitor(ready.context())
    wait_until(lambda: runner.poll().ended, "the end of the job")
    runner.finish()
    assert monitor.look().state == "ended"


def test_a_training_without_a_step_for_too_long_is_ended_and_says_so(
    ready: Bench, wait_until: Wait, clock: Clock
) -> None:
    runner = begin(ready, wait_until, hold_at_step=3)
    monitor = TrainingMonitor(ready.context())
    wait_until(lambda: monitor.look() and ready.steps() == [1, 2], "two steps")
    clock.skip(minutes=STALL_MINUTES - 1)
    assert monitor.look().state == "running"
    clock.skip(minutes=2)
    watched = monitor.look()
    assert watched.state == "stalled"
    assert watched.detail.endswith("after step 2")
    assert ready.processes() == []
    with pytest.raises(
        TrainingStalled, match=r"no step for 31m .* after step 2; the job was ended"
    ) as caught:
        runner.finish()
    assert not caught.value.retryable
    assert ready.stage("train").error_class == "TrainingStalled"


def test_a_training_that_never_begins_is_ended_too(ready: Bench, wait_until: Wait, clock: Clock) -> None:
    runner = begin(ready, wait_until, hold=["train"])
    monitor = TrainingMonitor(ready.context())
    assert monitor.look().state == "starting"
    clock.skip(minutes=STALL_MINUTES + 1)
    assert monitor.look().state == "stalled"
    with pytest.raises(TrainingStalled, match="before the first step"):
        runner.finish()


def test_a_stalled_training_is_nothing_to_try_again(ready: Bench, wait_until: Wait, clock: Clock) -> None:
    begin(ready, wait_until, hold_at_step=3)
    monitor = TrainingMonitor(ready.context())
    wait_until(lambda: monitor.look() and ready.steps() == [1, 2], "two steps")
    clock.skip(minutes=STALL_MINUTES + 1)
    assert monitor.look().state == "stalled"
    with pytest.raises(TrainingStalled) as caught:
        StageRunner(ready.context(), "train").finish()
    assert not caught.value.retryable


def test_a_loss_that_is_no_number_ends_the_training(ready: Bench, wait_until: Wait) -> None:
    runner = begin(ready, wait_until, nan_at_step=3)
    monitor = TrainingMonitor(ready.context())
    watched = []
    wait_until(lambda: watched.append(monitor.look()) or watched[-1].state == "diverged", "the verdict")
    assert watched[-1].detail == "the step loss at step 3 is nan"
    with pytest.raises(TrainingDiverged, match="step 3 is nan"):
        runner.finish()


def test_the_steps_that_a_resumed_training_repeats_are_a_sign_of_life(
    ready: Bench, wait_until: Wait, clock: Clock
) -> None:
    runner = begin(ready, wait_until, hold_at_step=4)
    monitor = TrainingMonitor(ready.context())
    wait_until(lambda: monitor.look() and ready.steps() == [1, 2, 3], "three steps")
    ready.kill_trainer()
    wait_until(lambda: runner.poll().ended, "the end of the job")
    with pytest.raises(Exception, match="killed from outside"):
        runner.finish()
    again = begin(ready, wait_until, hold_at_step=3)  # from the checkpoint of step 1: repeats step 2
    assert ready.trainer.calls("train")[-1]["resumed"] == 1
    wait_until(lambda: again.poll() and "step: 2" in log_of(ready, again), "step 2 again")
    assert monitor.look().state == "running"
    clock.skip(minutes=STALL_MINUTES - 1)
    assert monitor.look().state == "running"
    ready.trainer.set(hold_at_step=4)
    wait_until(lambda: again.poll() and "step: 3" in log_of(ready, again), "step 3 again")
    monitor.look()
    clock.skip(minutes=STALL_MINUTES - 1)
    assert monitor.look().state == "running"
    assert ready.steps() == [1, 2, 3]


def log_of(bench: Bench, runner: StageRunner) -> str:
    """Return what the training's present job has printed."""
    return bench.store().log_path(runner.log_name(bench.stage("train").job)).read_text()


def test_a_watch_that_was_restarted_sees_a_divergence_that_is_on_record_already(
    ready: Bench, wait_until: Wait
) -> None:
    begin(ready, wait_until, nan_at_step=2)
    runner = StageRunner(ready.context(), "train")
    wait_until(lambda: runner.poll().ended, "the end of the job")
    text = runner.read_file("metrics.jsonl", 0).log
    monitor = TrainingMonitor(ready.context())
    ready.store().append_events(monitor._reader.feed(text))
    assert TrainingMonitor(ready.context()).look().state == "diverged"
