"""Recipes as Airflow shows them: their DAGs, their trigger forms, and what is refused."""

from __future__ import annotations

import pytest

from finetune.demo.api import AirflowApiError
from tests.airflow.lab import Lab, wait_for
from tests.fakes.recipes import write_recipe

pytestmark = [pytest.mark.airflow, pytest.mark.side_by_side, pytest.mark.timeout(900)]


def test_a_recipe_is_a_dag_that_is_paused_and_has_a_form_with_its_params(lab: Lab) -> None:
    line = lab.line("form", {"description": "Learns to chat.", "trainer.steps": 7})
    dag = wait_for("the DAG", lambda: lab.api.dag("finetune_form"))
    assert dag.is_paused
    details = lab.api._call("GET", "/api/v2/dags/finetune_form/details")
    assert details["description"] == "Learns to chat."
    assert details["max_active_runs"] == 1
    params = details["params"]
    assert {name: param["value"] for name, param in params.items()} == {
        "steps": 7,
        "per_device_batch_size": 1,
        "max_target_length": 64,
        "learning_rate": 0.1,
        "checkpoint_period": 5,
        "seed": 0,
        "min_heldout_improvement": 0.0,
    }
    steps = params["steps"]["schema"]
    assert (steps["type"], steps["minimum"]) == ("integer", 1)
    assert (steps["title"], steps["section"]) == ("Steps", "Training")
    assert params["steps"]["description"].startswith("Training steps")
    assert params["learning_rate"]["schema"]["exclusiveMinimum"] == 0
    assert params["min_heldout_improvement"]["schema"]["type"] == ["number", "null"]
    assert params["min_heldout_improvement"]["schema"]["section"] == "Checks"
    assert line.machines() == []


def test_values_outside_their_limits_are_refused_by_the_form(lab: Lab) -> None:
    line = lab.line("limits")
    line.unpause()
    for conf in ({"steps": 0}, {"checkpoint_period": "many"}, {"learning_rate": 2}, {"seed": -1}):
        with pytest.raises(AirflowApiError, match=f"400 .*{next(iter(conf))}"):
            line.api.trigger(line.dag_id, conf)
    assert line.api.dag_runs(line.dag_id) == []


def test_a_parameter_that_does_not_exist_fails_the_run_before_a_machine_is_made(lab: Lab) -> None:
    line = lab.line("typo")
    line.trigger({"step": 3})
    assert line.wait() == "failed"
    states = line.states()
    assert states["preflight"] == "failed"
    assert states["create_machine"] == "upstream_failed"
    log = line.log("preflight")
    assert "step: is no parameter of a run. Did you mean `steps`?" in log
    assert "RecipeError" in log
    assert line.tasks()["preflight"].try_number == 1
    assert not line.store().run_json.exists()
    line.assert_nothing_left()


def test_a_broken_recipe_is_one_import_error_with_file_field_and_cure_and_hides_no_other(lab: Lab) -> None:
    healthy = lab.line("beside-a-broken-one")
    broken = write_recipe(lab.recipes, "broken", {"trainer.step": 3})

    def find_error() -> str | None:
        errors = lab.api.import_errors()
        assert len(errors) <= 1
        return next((error.stack_trace for error in errors if "broken.yaml" in error.stack_trace), None)

    trace = wait_for("the import error", find_error)
    assert "broken.yaml has a problem:" in trace
    assert "trainer.step: is no field of trainer. Did you mean `steps`?" in trace
    assert f"python -m finetune validate {broken}" in trace
    wait_for("the other DAG", lambda: lab.api.dag(healthy.dag_id))
    assert lab.api.dag("finetune_broken") is None
    write_recipe(lab.recipes, "broken")
    wait_for("the mended DAG", lambda: lab.api.dag("finetune_broken"))
    wait_for("the end of the error", lambda: not lab.api.import_errors())
