"""Airflow's own processes are killed in mid-training: the run goes on, and nothing is trained twice."""

from __future__ import annotations

import pytest

from tests.airflow.lab import Lab

pytestmark = [pytest.mark.airflow, pytest.mark.side_by_side(seconds=120), pytest.mark.timeout(900)]


def test_a_run_outlives_its_scheduler_its_triggerer_and_all_of_airflow(lab: Lab) -> None:
    with lab.on_sqlite() as sqlite_lab:
        outlive_kills(sqlite_lab)


def outlive_kills(lab: Lab) -> None:
    """Kill Airflow's processes, one after the other and then all, while a run trains."""
    line = lab.line("outlives", None, hold_at_step=3)
    line.trigger()
    line.wait_for_step(2)
    line.wait_for_state("train", "deferred")

    lab.kill("scheduler")
    line.trainer.set(hold_at_step=5)
    line.wait_for_step(4)  # training and watch need no scheduler
    lab.respawn("scheduler")

    lab.kill("triggerer")
    line.trainer.set(hold_at_step=7)
    lab.respawn("triggerer")
    line.wait_for_step(6)

    lab.airflow.kill()
    line.trainer.set(hold_at_step=9)
    lab.airflow.start()
    line.wait_for_step(8)

    line.trainer.mend()
    line.assert_green()
    assert [call["resumed"] for call in line.trainer.calls("train")] == [0], "it was trained more than once"
    job = line.stage("train").job
    assert job.generation == 1
    log = line.store().log_path(f"train-{job.machine_incarnation[:8]}-1").read_text()
    assert [log.count(f"completed step: {step},") for step in range(1, 11)] == [1] * 10
    # A killed triggerer takes with it what it had not yet handed to Airflow's log; nothing is printed twice.
    printed = line.printed_steps()
    assert printed == sorted(set(printed)), "lines are doubled in the task's log"
    assert printed[-1] == 10
