"""One Airflow with the toy DAG, shared by the tests that only run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import wait_for

TOY_DAGS = Path(__file__).parent / "toy_dags"
TOY_DAG = "finetune_tiny-local"
TOY_RECIPE = "tiny-local"


@pytest.fixture(scope="session")
def toy_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy-store")


@pytest.fixture(scope="session")
def toy_airflow(tmp_path_factory: pytest.TempPathFactory, toy_store: Path) -> Iterator[AirflowLocal]:
    """A running Airflow that knows the toy DAG."""
    home = tmp_path_factory.mktemp("toy-home")
    with AirflowLocal(home, dags=TOY_DAGS, env={"FINETUNE_STORE": f"file://{toy_store}"}) as airflow:
        wait_for("the toy DAG", lambda: airflow.api.dag(TOY_DAG), 60)
        airflow.api.set_paused(TOY_DAG, paused=False)
        yield airflow


@pytest.fixture
def toy_environment(monkeypatch: pytest.MonkeyPatch, toy_airflow: AirflowLocal, toy_store: Path) -> None:
    """The settings that the toy Airflow was started with."""
    monkeypatch.setenv("FINETUNE_HOME", str(toy_airflow.home))
    monkeypatch.setenv("FINETUNE_STORE", f"file://{toy_store}")
