"""One stage by itself: on a blank world, after an earlier try, after a kill, beyond its limit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConnectionLost, JobLost, MachineLost, StageFailed, StageTimeout
from finetune.foreground import run_stage
from finetune.remote.local import LocalTransport
from finetune.stages.job_io import job_environment
from finetune.stages.runner import StageRunner
from finetune.stages.stage_machine import StageMachine
from finetune.stages.teardown import create_machines, delete_machines, give_verdict, prove_nothing_left
from finetune.stages.watch import TrainingMonitor
from tests.stages.conftest import Bench

Wait = Callable[[Callable[[], object], str], None]


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """A bench with a run whose training can begin; it has no machine."""
    bench.make_ready()
    return bench


def finish(bench: Bench, stage: str, wait_until: Wait) -> Any:
    """Wait for a stage's job and take its result, each time as another process would."""
    wait_until(lambda: StageRunner(bench.context(), stage).poll().ended, f"the end of {stage}'s job")
    return StageRunner(bench.context(), stage).finish()


def test_a_stage_makes_the_machine_that_it_lacks_and_deletes_it(ready: Bench, wait_until: Wait) -> None:
    ready.trainer.set(hold=["train"])
    record = StageRunner(ready.context(), "train").begin()
    assert record.job.made_machine
    assert len(ready.machines()) == 1
    ready.trainer.mend()
    done = finish(ready, "train", wait_until)
    assert (done.state, done.cost) == ("done", 0.0)
    assert ready.machines() == []


def test_a_stage_leaves_the_runs_machine_to_the_run(ready: Bench, wait_until: Wait) -> None:
    create_machines(ready.context())
    machines = ready.machines()
    record = StageRunner(ready.context(), "train").begin()
    assert not record.job.made_machine
    finish(ready, "train", wait_until)
    assert ready.machines() == machines
    delete_machines(ready.context())
    assert ready.machines() == []


def test_a_second_try_takes_up_the_job_of_the_first(ready: Bench, wait_until: Wait) -> None:
    ready.trainer.set(hold_at_step=3)
    first = StageRunner(ready.context(), "train").begin()
    second = StageRunner(ready.context(), "train").begin()
    assert second.job == first.job
    assert second.reason == "re-attached to the job that an earlier try started"
    assert second.started_at == first.started_at
    ready.trainer.mend()
    assert finish(ready, "train", wait_until).job.generation == 1
    assert len(ready.trainer.calls("train")) == 1
    assert ready.machines() == []


def test_a_job_that_ended_while_nobody_looked_is_taken_up_too(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    wait_until(lambda: StageRunner(ready.context(), "train").poll().ended, "the end of the job")
    StageRunner(ready.context(), "train").begin()
    assert finish(ready, "train", wait_until).job.generation == 1
    assert ready.steps() == list(range(1, 11))


def test_a_stage_that_is_done_is_not_done_again(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    finish(ready, "train", wait_until)
    again = StageRunner(ready.context(), "train").begin()
    assert again.state == "done"
    assert "this run has done it already; to run it anew, delete" in again.reason
    assert len(ready.trainer.calls("train")) == 1
    assert ready.machines() == []


def test_a_stage_that_is_done_is_done_again_when_what_it_made_is_gone(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    shutil.rmtree(Path(finish(ready, "train", wait_until).outputs["checkpoint"]).parent)
    assert StageRunner(ready.context(), "train").begin().state == "running"
    assert finish(ready, "train", wait_until).state == "done"


def test_a_stage_whose_commands_have_changed_since_is_done_again(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    done = finish(ready, "train", wait_until)
    ready.store().write_stage(done.model_copy(update={"digest": "of other commands"}))
    assert StageRunner(ready.context(), "train").begin().state == "running"


def test_a_try_that_was_killed_before_it_deleted_its_machine_leaves_that_to_the_next(
    ready: Bench, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    StageRunner(ready.context(), "train").begin()
    with monkeypatch.context() as patch:
        patch.setattr(StageMachine, "release", lambda _: None)
        finish(ready, "train", wait_until)
    assert len(ready.machines()) == 1
    assert StageRunner(ready.context(), "train").begin().state == "done"
    assert ready.machines() == []


def test_a_try_that_was_killed_before_it_recorded_its_job_leaves_the_machine_to_the_next(
    ready: Bench, wait_until: Wait
) -> None:
    StageRunner(ready.context(), "train").begin()
    ready.store().stage_path("train").unlink()
    assert StageRunner(ready.context(), "train").begin().job.generation == 1
    finish(ready, "train", wait_until)
    assert ready.machines() == []


def test_a_stage_without_its_input_says_which_task_to_clear(bench: Bench) -> None:
    with pytest.raises(StageFailed) as caught:
        StageRunner(bench.context(), "export_checkpoint").begin()
    text = str(caught.value)
    assert text.startswith(
        "StageFailed in export_checkpoint: its input train.checkpoint is not in the store: "
    )
    assert "Left behind: nothing was started" in text
    assert "Next: clear the task train, with downstream tasks" in text
    assert bench.machines() == []


def test_a_killed_job_is_told_apart_from_one_that_failed(ready: Bench, wait_until: Wait) -> None:
    ready.trainer.set(hold_at_step=8)
    StageRunner(ready.context(), "train").begin()
    wait_until(lambda: "step: 7" in read_log(ready), "the seventh step")
    ready.kill_trainer()
    with pytest.raises(JobLost, match=r"killed from outside \(exit code 137\)") as caught:
        finish(ready, "train", wait_until)
    assert caught.value.retryable
    assert ready.stage("train").error_class == "JobLost"
    assert ready.machines() == []
    assert ready.steps() == [1, 2, 3, 4, 5, 6, 7], "steps that nobody watched are lost"
    ready.trainer.mend()
    StageRunner(ready.context(), "train").begin()
    assert finish(ready, "train", wait_until).state == "done"
    assert ready.steps() == list(range(1, 11))
    assert [call["resumed"] for call in ready.trainer.calls("train")] == [0, 5]


def read_log(bench: Bench) -> str:
    """Look at the training's job, and return all that it has printed."""
    runner = StageRunner(bench.context(), "train")
    runner.poll()
    job = bench.stage("train").job
    return bench.store().log_path(runner.log_name(job)).read_text()


def test_a_machine_that_is_gone_costs_the_steps_since_the_last_checkpoint_only(
    ready: Bench, wait_until: Wait
) -> None:
    create_machines(ready.context())
    ready.trainer.set(hold_at_step=8)
    StageRunner(ready.context(), "train").begin()
    monitor = TrainingMonitor(ready.context())
    wait_until(lambda: monitor.look() and ready.steps()[-1:] == [7], "the seventh step")
    delete_machines(ready.context())
    assert monitor.look().state == "waiting"
    with pytest.raises(MachineLost, match="is gone") as caught:
        StageRunner(ready.context(), "train").finish()
    assert caught.value.retryable
    ready.trainer.mend()
    StageRunner(ready.context(), "train").begin()
    assert finish(ready, "train", wait_until).state == "done"
    assert ready.steps() == list(range(1, 11))
    assert [call["resumed"] for call in ready.trainer.calls("train")] == [0, 5]
    assert ready.machines() == []


def test_a_job_beyond_its_limit_is_ended_with_its_machine(ready: Bench, wait_until: Wait) -> None:
    ready.trainer.set(hold_at_step=2)
    runner = StageRunner(ready.context(), "train")
    record = runner.begin()
    assert runner.seconds_over_limit() < 0
    limit = timedelta(seconds=ready.context().plan.stage("train").limit_seconds)
    ready.store().write_stage(record.model_copy(update={"started_at": record.started_at - limit}))
    with pytest.raises(StageTimeout) as caught:
        run_stage(ready.context(), "train", print)
    assert "ran for more than its limit of 720 minutes and was ended" in str(caught.value)
    assert "raise the stage's limit in the recipe's `limits`" in str(caught.value)
    assert ready.stage("train").error_class == "StageTimeout"
    assert ready.processes() == []
    assert ready.machines() == []


def test_a_stage_that_failed_ends_its_job_on_the_runs_machine_which_stays(ready: Bench) -> None:
    create_machines(ready.context())
    ready.trainer.set(hold_at_step=2)
    runner = StageRunner(ready.context(), "train")
    runner.begin()
    runner.fail(runner.time_out())
    assert ready.processes() == []
    assert len(ready.machines()) == 1


def test_a_stage_that_a_person_ended_is_over_with_its_job_and_machine(ready: Bench) -> None:
    ready.trainer.set(hold_at_step=2)
    StageRunner(ready.context(), "train").begin()
    StageRunner(ready.context(), "train").cancel("a user ended the task")
    assert "the stage was stopped: a user ended the task" in ready.stage("train").error
    assert ready.processes() == []
    assert ready.machines() == []


def test_a_lost_connection_says_nothing_of_the_job(
    ready: Bench, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.trainer.set(hold_at_step=2)
    StageRunner(ready.context(), "train").begin()

    run, lost = LocalTransport.run, [1, 1]

    def lose_twice(self: LocalTransport, *words: Any, **options: Any) -> Any:
        if lost:
            lost.pop()
            raise ConnectionLost("no answer")
        return run(self, *words, **options)

    monkeypatch.setattr(LocalTransport, "run", lose_twice)
    with pytest.raises(ConnectionLost):
        StageRunner(ready.context(), "train").poll()
    with pytest.raises(ConnectionLost):
        StageRunner(ready.context(), "train").finish()
    assert ready.stage("train").state == "running"
    assert StageRunner(ready.context(), "train").begin().job.generation == 1
    ready.trainer.mend()
    finish(ready, "train", wait_until)
    assert len(ready.trainer.calls("train")) == 1


def test_a_job_that_still_runs_has_no_result_yet(ready: Bench, wait_until: Wait) -> None:
    ready.trainer.set(hold_at_step=2)
    StageRunner(ready.context(), "train").begin()
    assert StageRunner(ready.context(), "train").finish().state == "running"
    ready.trainer.mend()
    assert finish(ready, "train", wait_until).state == "done"


def test_what_a_job_prints_is_kept_once_however_many_look(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    eyes = [StageRunner(ready.context(), "train") for _ in range(2)]
    seen: list[str] = []

    def look() -> bool:
        polled = [eye.poll() for eye in eyes]
        seen.extend(one.fresh_log for one in polled)
        return all(one.ended for one in polled)

    wait_until(look, "the end of the job")
    log = read_log(ready)
    steps = [line for line in log.splitlines() if line.startswith("completed step")]
    assert len(steps) == 10
    assert "".join(seen) == log
    assert eyes[0].poll().fresh_log == ""


def test_another_learning_rate_is_another_training(ready: Bench, wait_until: Wait) -> None:
    StageRunner(ready.context(), "train").begin()
    finish(ready, "train", wait_until)
    changed = ready.context(learning_rate=0.2)
    assert StageRunner(changed, "train").begin().state == "running"
    wait_until(lambda: StageRunner(changed, "train").poll().ended, "the end of the job")
    StageRunner(changed, "train").finish()
    calls = ready.trainer.calls("train")
    assert [(call["resumed"], call["learning_rate"]) for call in calls] == [(0, 0.1), (0, 0.2)]


def test_the_verdict_names_every_task_that_did_not_succeed(bench: Bench) -> None:
    states = {
        "train": "success",
        "watch_training": "skipped",
        "check_model": None,
        "delete_machine": "failed",
    }
    with pytest.raises(StageFailed) as caught:
        give_verdict(bench.context(), states)
    assert "check_model is not run, delete_machine is failed, watch_training is skipped" in str(caught.value)
    assert "train is" not in str(caught.value)
    assert bench.stage("verdict").state == "failed"
    assert bench.stage("verdict").error == str(caught.value)


def test_the_verdict_deletes_what_was_forgotten_and_says_so(bench: Bench) -> None:
    create_machines(bench.context())
    assert len(bench.machines()) == 1
    record = give_verdict(bench.context(), {"train": "success"})
    assert record.evidence["deleted"] == [
        f"directory {bench.home}/machines/{name}" for name in machine_names(bench)
    ]
    assert bench.machines() == []
    assert prove_nothing_left(bench.context()) == []


def machine_names(bench: Bench) -> list[str]:
    """Return the name of the run's machine, from its record."""
    return [machine["name"] for machine in bench.stage("create_machine").evidence["machines"]]


def test_a_job_gets_secrets_only_where_its_stage_needs_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for stage in bench.context().plan.stages:
        assert "hf_secret" not in job_environment(stage).values()
