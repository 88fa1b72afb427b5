"""The client of Airflow's REST API, against a real Airflow."""

from __future__ import annotations

import jwt
import pytest
from conftest import TOY_DAG

from finetune.demo.api import AirflowApi, AirflowApiError, WaitTimeout, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ended_run(toy_airflow) -> str:
    """The id of a run of the toy DAG that has ended well."""
    run_id = toy_airflow.api.trigger(TOY_DAG, {"note": "hello"})
    assert toy_airflow.api.wait_for_run(TOY_DAG, run_id, 120).state == "success"
    return run_id


def test_a_run_knows_what_it_was_triggered_with(toy_airflow, ended_run) -> None:
    run = toy_airflow.api.dag_run(TOY_DAG, ended_run)

    assert run.conf == {"note": "hello"}
    assert run.is_finished
    assert run.duration > 0
    assert ended_run in [one.dag_run_id for one in toy_airflow.api.dag_runs(TOY_DAG, states=["success"])]
    assert ended_run not in [one.dag_run_id for one in toy_airflow.api.dag_runs(states=["queued", "running"])]


def test_a_task_has_a_state_and_a_log(toy_airflow, ended_run) -> None:
    task = toy_airflow.api.task_instances(TOY_DAG, ended_run)["train"]

    assert (task.state, task.try_number, task.is_finished) == ("success", 1, True)
    assert "Done. Returned value was: None" in toy_airflow.api.task_log(TOY_DAG, ended_run, "train")


def test_clearing_says_what_was_cleared_and_runs_it_again(toy_airflow, ended_run) -> None:
    cleared = toy_airflow.api.clear(TOY_DAG, ended_run, ["check_model"])

    assert {"check_model", "verdict"} <= set(cleared)
    assert "train" not in cleared
    assert toy_airflow.api.wait_for_run(TOY_DAG, ended_run, 120).state == "success"
    tasks = toy_airflow.api.task_instances(TOY_DAG, ended_run)
    assert (tasks["check_model"].try_number, tasks["train"].try_number) == (2, 1)


def test_marking_a_task_shows(toy_airflow, ended_run) -> None:
    toy_airflow.api.set_task_state(TOY_DAG, ended_run, "watch_training", "failed")

    assert toy_airflow.api.task_instances(TOY_DAG, ended_run)["watch_training"].state == "failed"


def test_an_unknown_dag_is_none_and_an_unknown_run_an_error_that_says_so(toy_airflow) -> None:
    assert toy_airflow.api.dag("no_such_dag") is None
    with pytest.raises(AirflowApiError, match="404"):
        toy_airflow.api.dag_run(TOY_DAG, "no-such-run")


def test_a_wrong_password_is_refused(toy_airflow) -> None:
    with (
        AirflowApi(toy_airflow.base_url, "admin", "wrong") as api,
        pytest.raises(AirflowApiError, match="/auth/token: 401"),
    ):
        api.dags()


def test_an_expired_login_is_renewed(toy_airflow) -> None:
    claims = {"sub": "admin", "role": "ADMIN", "aud": "apache-airflow", "iat": 1, "nbf": 1, "exp": 2}
    expired = jwt.encode(claims, toy_airflow.secrets.jwt_secret, algorithm="HS512")
    api = AirflowApi(toy_airflow.base_url, "admin", toy_airflow.secrets.admin_password)

    for stale in (expired, "not a token"):
        api._token = stale
        assert api.dag(TOY_DAG)


def test_a_server_that_is_gone_is_named() -> None:
    with (
        AirflowApi("http://127.0.0.1:1", "admin", "x") as api,
        pytest.raises(AirflowApiError, match="no answer"),
    ):
        api.health()


def test_waiting_in_vain_says_what_for() -> None:
    with pytest.raises(WaitTimeout, match="a sign"):
        wait_for("a sign", lambda: None, 0)
