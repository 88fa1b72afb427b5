"""A failed stage is mended and cleared: the run goes on from there, and nothing is left behind."""

from __future__ import annotations

import pytest

from tests.airflow.lab import Lab, Line

pytestmark = [pytest.mark.airflow, pytest.mark.side_by_side, pytest.mark.timeout(900)]


def run_to_failed_export(lab: Lab, name: str) -> Line:
    """Run a recipe whose export fails, to its end."""
    line = lab.line(name, None, fail={"export": "ValueError: no such tensor"})
    line.trigger()
    assert line.wait() == "failed"
    return line


@pytest.mark.side_by_side(seconds=60)
def test_a_failed_stage_ends_the_run_without_its_machine_and_its_clear_makes_it_green(lab: Lab) -> None:
    line = run_to_failed_export(lab, "export-fails")
    assert line.states() == {
        "preflight": "success",
        "create_machine": "success",
        "install_trainer": "success",
        "convert_checkpoint": "success",
        "train": "success",
        "watch_training": "success",
        "export_checkpoint": "failed",
        "check_model": "upstream_failed",
        "delete_machine": "success",
        "verdict": "failed",
    }
    line.assert_nothing_left()
    error = line.stage("export_checkpoint").error
    assert error.startswith("StageFailed in export_checkpoint: the job ended with exit code 1.")
    assert "ValueError: no such tensor" in error
    assert "Left behind: what the stages before it made is in the store" in error
    assert "Next: read " in error
    assert "then clear the task" in error
    assert "Next: read " in line.log("export_checkpoint")
    assert line.tasks()["export_checkpoint"].try_number == 1, "what a retry cannot cure was tried again"
    assert "export_checkpoint is failed" in line.stage("verdict").error
    line.trainer.mend()
    assert "check_model" in line.clear("export_checkpoint")
    line.assert_green()
    assert line.stage("export_checkpoint").error is None
    assert [len(line.trainer.calls(command)) for command in ("convert", "train", "export")] == [1, 1, 2]


@pytest.mark.side_by_side(seconds=60)
def test_a_stage_that_is_cleared_alone_makes_its_own_machine_and_leaves_none(lab: Lab) -> None:
    line = run_to_failed_export(lab, "clear-alone")
    cleared = line.clear("export_checkpoint", only_failed=True, include_downstream=False)
    assert not {"create_machine", "delete_machine"} & set(cleared), "its machine comes from elsewhere"
    assert line.wait() == "failed"
    assert len(line.trainer.calls("export")) == 2, "it was not run again"
    assert line.stage("export_checkpoint").state == "failed"
    line.assert_nothing_left()
    line.trainer.mend()
    line.clear("export_checkpoint", only_failed=False, include_downstream=False)
    line.wait()
    assert line.states()["export_checkpoint"] == "success"
    assert len(line.trainer.calls("export")) == 3
    line.assert_nothing_left()
    line.clear("check_model", only_failed=True)
    line.assert_green()
    assert len(line.trainer.calls("train")) == 1


@pytest.mark.side_by_side(seconds=60)
def test_a_cleared_stage_that_is_ended_by_a_person_takes_its_own_machine_along(lab: Lab) -> None:
    line = run_to_failed_export(lab, "clear-and-end")
    line.trainer.set(hold=["export"])
    line.clear("export_checkpoint", only_failed=True, include_downstream=False)
    line.wait_for_call("export", 2)
    line.wait_for_state("export_checkpoint", "deferred")
    assert len(line.machines()) == 1
    line.api.set_task_state(line.dag_id, "one", "export_checkpoint", "failed")
    assert line.wait() == "failed"
    line.assert_nothing_left()


@pytest.mark.side_by_side(seconds=60)
def test_a_training_that_failed_by_itself_is_cleared_watched_again_and_green(lab: Lab) -> None:
    line = lab.line("train-fails", None, exit_at_step=7)
    line.trigger()
    assert line.wait() == "failed"
    assert line.states()["train"] == "failed"
    assert "RuntimeError: asked to fail at step 7" in line.stage("train").error
    line.assert_nothing_left()
    line.trainer.mend()
    line.clear("train")
    line.assert_green()
    assert [call["resumed"] for call in line.trainer.calls("train")] == [0, 5]
