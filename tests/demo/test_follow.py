"""What is told of a run while it goes on."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from finetune.demo.api import DagRun, TaskInstance
from finetune.demo.display import Display
from finetune.demo.follow import RunFollower, TrainingProgress
from finetune.store import RunStore, StageRecord, Store

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path) -> RunStore:
    return Store(str(tmp_path)).run("recipe", "run")


class Watcher:
    """A follower whose Airflow says what the test says, and what it has printed."""

    def __init__(self, store: RunStore, terminal: bool = False) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=120, force_terminal=terminal, color_system=None, highlight=False
        )
        self.display = Display(self.console)
        self.follower = RunFollower(None, "dag", "run", store, self.display)  # type: ignore[arg-type]

    def look(self, **states: str | None) -> list[str]:
        """Return the lines that a look at tasks in these states has printed; ended ones took 7 s."""
        before = len(self.file.getvalue())
        tasks = {
            name: TaskInstance(
                task_id=name,
                map_index=-1,
                try_number=1,
                state=state,
                start_date=START,
                end_date=START + timedelta(seconds=7),
            )
            for name, state in states.items()
        }
        self.follower.look(tasks)
        return self.file.getvalue()[before:].splitlines()


def record(stage: str, **what: Any) -> StageRecord:
    known = {"stage": stage, "state": "done", "digest": "", "started_at": START, "seconds": 61.5}
    return StageRecord.model_validate({**known, **what})


def step(number: int, **what: Any) -> dict[str, Any]:
    known = {"kind": "step", "step": number, "total_steps": 10, "loss": 2.5, "step_seconds": 3.0}
    return {**known, "tokens_per_second_per_device": 120.0, **what}


def test_a_stage_is_told_once_when_it_starts_and_once_when_it_ends(store) -> None:
    watcher = Watcher(store)

    assert watcher.look(preflight=None) == []
    assert watcher.look(preflight="queued") == []
    assert watcher.look(preflight="running") == ["  → preflight started"]
    assert watcher.look(preflight="deferred") == []
    assert watcher.look(preflight="success") == ["  ✓ preflight                7.0 s"]
    assert watcher.look(preflight="success") == []


def test_a_stage_that_ended_between_two_looks_is_told_too(store) -> None:
    lines = Watcher(store).look(preflight="failed")

    assert lines == ["  → preflight started", "  ✗ preflight                7.0 s"]


def test_a_retry_does_not_end_the_stage(store) -> None:
    watcher = Watcher(store)
    watcher.look(train="running")

    assert watcher.look(train="up_for_retry") == []


@pytest.mark.parametrize(("recorded", "told"), [(61.5, "61.5 s"), (0.1, "7.0 s"), (None, "7.0 s")])
def test_a_stages_seconds_are_those_of_all_its_tries(store, recorded, told) -> None:
    store.write_stage(record("convert_checkpoint", seconds=recorded))

    assert Watcher(store).look(convert_checkpoint="success")[-1] == f"  ✓ convert_checkpoint {told:>11}"


def test_a_reused_stage_says_why(store) -> None:
    store.write_stage(record("convert_checkpoint", state="reused", reason="made [before]"))

    assert Watcher(store).look(convert_checkpoint="success")[-1].endswith("reused: made [before]")


def test_a_stage_that_was_never_begun_has_no_seconds(store) -> None:
    lines = Watcher(store).look(export_checkpoint="upstream_failed")

    assert [line.split() for line in lines] == [["-", "export_checkpoint", "upstream_failed"]]


def test_a_run_that_waits_for_another_says_so_once(store, monkeypatch) -> None:
    watcher = Watcher(store)
    queued = DagRun(dag_id="dag", dag_run_id="run", state="queued")
    watcher.follower.look_at_queue(queued)
    assert watcher.file.getvalue() == ""
    monkeypatch.setattr("finetune.demo.follow.QUEUE_PATIENCE_SECONDS", -1.0)

    watcher.follower.look_at_queue(queued)
    watcher.follower.look_at_queue(queued)

    assert watcher.file.getvalue() == "  Waiting: another run of this recipe has not ended yet.\n"


def test_without_a_terminal_training_is_a_plain_line_now_and_then(store, monkeypatch) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) / 2)
    monkeypatch.setattr("finetune.demo.display.PLAIN_LINE_SECONDS", 10.0)
    watcher = Watcher(store)
    watcher.look(train="running")

    printed = []
    for number in range(1, 11):
        store.append_events([step(number, loss=2.5 - number / 10)])
        printed += watcher.look(train="running")

    assert 2 <= len(printed) < 10
    assert all(line.startswith("    train: step ") for line in printed)


def test_on_a_terminal_training_is_one_line_that_moves(store) -> None:
    watcher = Watcher(store, terminal=True)
    with watcher.display:
        watcher.look(train="running")
        store.append_events([step(number) for number in range(1, 5)])
        watcher.look(train="running")
        rendered = io.StringIO()
        Console(file=rendered, width=120, color_system=None).print(watcher.display._render())

    (line,) = rendered.getvalue().splitlines()
    assert "train" in line
    assert "step 4/10, loss 2.500, 120 tokens/s/device, about 18 s left" in line
    assert "→" not in watcher.file.getvalue()


def test_before_the_first_step_the_training_says_what_it_does() -> None:
    progress = TrainingProgress()

    progress.take([{"kind": "verdict", "state": "running", "detail": ""}])

    assert (progress.note, progress.share) == ("loading and compiling the model", None)


def test_events_of_an_earlier_look_are_not_counted_again() -> None:
    progress = TrainingProgress()
    events = [step(1), step(2), step(3), step(4)]

    progress.take(events[:2])
    progress.take(events)

    assert progress.share == 0.4


def test_after_the_last_step_the_checkpoint_is_awaited() -> None:
    progress = TrainingProgress()

    progress.take([step(10)])

    assert progress.note.endswith("writing the checkpoint")
