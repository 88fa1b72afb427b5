"""The shape of a recipe's DAG, on which it rests that no machine leaks and no run lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from finetune.errors import RecipeError
from finetune.recipe import load_recipe
from finetune_airflow.factory import make_dag, make_dags
from finetune_airflow.timetable import NightlyTimetable
from tests.fakes.recipes import write_recipe


@pytest.fixture
def dag(tmp_path: Path) -> DAG:
    """The DAG of a recipe that runs when it is triggered."""
    path = write_recipe(tmp_path / "recipes", "small", {"owner": "somebody"})
    return make_dag(load_recipe(path), path)


def test_the_verdict_is_the_only_leaf_and_fails_the_run(dag: DAG) -> None:
    assert [task.task_id for task in dag.tasks if not task.downstream_task_ids] == ["verdict"]
    verdict = dag.get_task("verdict")
    assert verdict.is_teardown
    assert verdict.on_failure_fail_dagrun


def test_the_deletion_follows_both_the_checks_and_the_machine(dag: DAG) -> None:
    delete = dag.get_task("delete_machine")
    assert delete.is_teardown
    assert not delete.on_failure_fail_dagrun, "it would be the only leaf that counts"
    setups = {task.task_id for task in dag.tasks if task.is_setup}
    assert setups == {"preflight", "create_machine"}
    assert setups <= delete.upstream_task_ids


def test_no_time_limit_of_airflow_can_skip_the_teardown(dag: DAG) -> None:
    assert dag.dagrun_timeout is None
    assert all(task.execution_timeout is None for task in dag.tasks)


def test_the_watch_is_cleared_with_the_training_and_begins_before_it(dag: DAG) -> None:
    assert "watch_training" in dag.get_task("train").downstream_task_ids
    assert dag.get_task("watch_training").trigger_rule == "always"


def test_every_task_survives_the_loss_of_its_process(dag: DAG) -> None:
    assert {task.task_id: task.retries for task in dag.tasks if task.retries < 2} == {}


def test_one_run_at_a_time_and_none_unasked(dag: DAG) -> None:
    assert dag.max_active_runs == 1
    assert dag.is_paused_upon_creation
    assert not dag.catchup
    assert dag.schedule is None
    assert {task.owner for task in dag.tasks} == {"somebody"}


def test_the_process_of_a_task_reads_its_own_recipe_only(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    for name in ("one", "two"):
        write_recipe(folder, name)
    write_recipe(folder, "broken", {"trainer.step": 3})
    assert sorted(make_dags(folder, None)) == ["finetune_one", "finetune_two"]
    assert list(make_dags(folder, "finetune_two")) == ["finetune_two"]
    with pytest.raises(RecipeError, match=r"broken\.yaml has a problem"):
        make_dags(folder, "finetune_broken")


def test_a_schedule_is_one_that_makes_up_for_nothing(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "recipes", "nightly", {"schedule": "0 2 * * *"})
    timetable = make_dag(load_recipe(path), path).timetable
    assert isinstance(timetable, NightlyTimetable)
    assert timetable.summary == "0 2 * * *"
