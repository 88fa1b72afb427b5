"""Whole runs in a real Airflow: green ones, and red ones that never look green."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.airflow.lab import Lab, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.side_by_side, pytest.mark.timeout(900)]

STAGES = ["install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model"]


@pytest.mark.side_by_side(seconds=100)
def test_a_stalled_training_is_ended_and_says_so(lab: Lab) -> None:
    line = lab.line("stalls", {"trainer.stall_timeout_minutes": 1}, hold_at_step=3)
    line.trigger()
    assert line.wait() == "failed"
    states = line.states()
    assert (states["train"], states["watch_training"]) == ("failed", "failed"), line.explain()
    assert "TrainingStalled in train: no step for 1m" in line.stage("train").error
    assert line.stage("train").error_class == "TrainingStalled"
    assert "the training was ended: no step for 1m" in line.log("watch_training")
    assert len(line.trainer.calls("train")) == 1
    assert line.trainer.calls("export") == []
    line.assert_nothing_left()


@pytest.mark.side_by_side(seconds=150)
def test_a_missed_night_is_not_made_up_for_and_the_next_one_is_kept(lab: Lab) -> None:
    tick = (datetime.now(UTC) + timedelta(minutes=2)).replace(second=0, microsecond=0)
    line = lab.line("nightly", {"schedule": f"{tick.minute} {tick.hour} * * *"})
    last = tick - timedelta(days=3)
    line.backfill(
        last - timedelta(minutes=1), last + timedelta(minutes=1)
    )  # then came two nights without a run
    line.unpause()
    assert datetime.now(UTC) < tick, "Airflow took too long to see the recipe"

    def find_scheduled_run() -> str | None:
        runs = [run.dag_run_id for run in line.api.dag_runs(line.dag_id)]
        return next((run for run in runs if run.startswith("scheduled__")), None)

    run = wait_for("the night's run", find_scheduled_run)
    assert run == f"scheduled__{tick.isoformat()}"
    line.assert_green(run)
    line.assert_green(f"backfill__{last.isoformat()}")
    assert len(line.api.dag_runs(line.dag_id)) == 2


def test_a_good_run_is_green_leaves_every_record_and_nothing_else(lab: Lab) -> None:
    line = lab.line("green")
    line.trigger({"steps": 12, "learning_rate": 0.2})
    line.assert_green()
    records = {record.stage: record for record in line.store().read_stages()}
    assert set(records) == {"preflight", "create_machine", *STAGES, "delete_machine", "verdict"}
    assert all(record.succeeded for record in records.values())
    assert records["train"].evidence["steps"] == 12
    assert records["train"].evidence["counted_tokens"] == 12 * 47
    assert records["export_checkpoint"].evidence["changed_tensors"] == 1
    assert records["check_model"].evidence["heldout_loss_after"] == 2.0
    assert records["verdict"].evidence["deleted"] == [], "delete_machine left something"
    run = line.store().read_run()
    assert (run.params["steps"], run.params["learning_rate"], run.params["seed"]) == (12, 0.2, 0)
    assert line.printed_steps() == list(range(1, 13))
    assert "step 12/12, loss " in line.log("watch_training")


@pytest.mark.parametrize(
    ("name", "faults", "error_class", "said"),
    [
        ("ends-early", {"end_early_at_step": 6}, "TrainingIncomplete", "it made 5 of 10 steps"),
        ("no-tokens", {"no_tokens": True}, "TrainingIncomplete", "no token counted"),
        ("diverges", {"nan_at_step": 4}, "TrainingDiverged", "not a number|step 4 is nan"),
    ],
)
def test_a_training_that_trained_nothing_is_never_green(
    lab: Lab, name: str, faults: dict[str, Any], error_class: str, said: str
) -> None:
    line = lab.line(name, None, **faults)
    line.trigger()
    assert line.wait() == "failed"
    assert line.states()["train"] == "failed"
    assert line.states()["export_checkpoint"] == "upstream_failed"
    assert line.stage("train").error_class == error_class
    assert any(words in line.stage("train").error for words in said.split("|"))
    assert error_class in line.log("train")
    assert len(line.trainer.calls("train")) == 1, "it was tried again"
    assert line.trainer.calls("export") == []
    line.assert_nothing_left()


def test_a_model_that_got_worse_fails_the_run(lab: Lab) -> None:
    line = lab.line("worse", None, heldout_loss=4.5)
    line.trigger()
    assert line.wait() == "failed"
    failed = {task: state for task, state in line.states().items() if state != "success"}
    assert failed == {"check_model": "failed", "verdict": "failed"}
    assert line.stage("check_model").error_class == "QualityGateFailed"
    assert "the held-out loss went from 4.0000 to 4.5000" in line.log("check_model")
    line.assert_nothing_left()


def test_a_run_whose_watch_was_skipped_is_not_green(lab: Lab) -> None:
    line = lab.line("unwatched", None, hold_at_step=3)
    line.trigger()
    line.wait_for_step(2)
    line.api.set_task_state(line.dag_id, "one", "watch_training", "skipped")
    line.trainer.mend()
    assert line.wait() == "failed"
    failed = {task: state for task, state in line.states().items() if state != "success"}
    assert failed == {"watch_training": "skipped", "verdict": "failed"}
    assert "the run is not complete: watch_training is skipped" in line.stage("verdict").error
    line.assert_nothing_left()


def test_a_run_that_is_marked_failed_in_mid_training_is_over_with_job_and_machine(lab: Lab) -> None:
    line = lab.line("marked-run", None, hold_at_step=3)
    line.trigger()
    line.wait_for_step(2)
    assert line.processes()
    line.api.set_run_state(line.dag_id, "one", "failed")
    assert line.wait() == "failed"
    line.assert_nothing_left()
    assert line.states()["train"] == "failed"
    assert line.states()["delete_machine"] == "success"
    assert "the stage was stopped: a user ended the task" in line.stage("train").error


def test_a_training_that_is_marked_failed_while_it_is_waited_for_ends_with_its_job(lab: Lab) -> None:
    line = lab.line("marked-task", None, hold_at_step=3)
    line.trigger()
    line.wait_for_step(2)
    line.api.set_task_state(line.dag_id, "one", "train", "failed")
    assert line.wait() == "failed"
    line.assert_nothing_left()
    assert line.states()["delete_machine"] == "success"
    assert "the stage was stopped: a user ended the task" in line.stage("train").error
    assert line.trainer.calls("export") == []


def test_a_killed_job_goes_on_from_its_last_checkpoint_and_each_step_stands_once(lab: Lab) -> None:
    line = lab.line("killed-job", None, hold_at_step=8)
    line.trigger()
    line.wait_for_step(7)
    line.trainer_process().kill()
    line.wait_for_state("train", "up_for_retry")
    line.trainer.mend()
    line.assert_green()
    assert [call["resumed"] for call in line.trainer.calls("train")] == [0, 5]
    assert line.stage("train").job.generation == 2
    assert line.tasks()["train"].try_number == 2
    assert "killed from outside" in line.logs("train")


def test_a_task_whose_own_process_is_killed_takes_up_its_job_again(lab: Lab) -> None:
    line = lab.line("killed-task", None, hold_at_step=9)
    line.trigger()
    line.wait_for_step(8)
    line.wait_for_state("train", "deferred")
    with line.events_locked():
        line.trainer.mend()
        line.wait_for_state("train", "running")  # it takes the job's result, and waits for the lock
        line.kill_task("train")
        line.wait_for_state("train", "up_for_retry")
    line.assert_green()
    assert len(line.trainer.calls("train")) == 1
    assert line.stage("train").job.generation == 1
    assert line.tasks()["train"].try_number == 2
