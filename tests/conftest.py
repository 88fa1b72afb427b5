"""Fixtures for tests of every part: an Airflow of the test's own, and a PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from finetune.demo.airflow_local import AirflowLocal
from tests.support.postgres import run_postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with run_postgres() as url:
        yield url


@pytest.fixture
def make_airflow(tmp_path: Path) -> Iterator[Callable[..., AirflowLocal]]:
    """Make an AirflowLocal below the test's folder, not yet started; it is stopped after the test."""
    with ExitStack() as stack:

        def make(name: str = "home", **options: Any) -> AirflowLocal:
            airflow = AirflowLocal(tmp_path / name, **options)
            stack.callback(airflow.stop)
            return airflow

        yield make


def pytest_configure() -> None:
    """Undo what nohup and background shells hand down: signals that are ignored here are ignored in every child."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
