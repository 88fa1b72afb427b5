"""One real Airflow for all tests, and tests that run side by side in it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.airflow.lab import Lab
from tests.support.postgres import run_postgres

# More runs at once than this only take turns on two cores.
SIDE_BY_SIDE = 6


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running Airflow on PostgreSQL, without recipes yet.

    On SQLite, Airflow's API server refuses one of two requests that write at once, which tests side by side would do.
    """
    with run_postgres() as url:
        lab = Lab(tmp_path_factory.mktemp("lab"), url)
        with lab.airflow:
            yield lab


class SideBySide:
    """Runs the tests marked ``side_by_side`` in threads, all at once, and reports each in its turn.

    Most of a test's time is waiting for Airflow; each has a recipe of its own. They take the fixture ``lab``, and what
    they are parametrized with, and nothing else.
    """

    def __init__(self) -> None:
        self._futures: dict[str, Future[None]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if not pyfuncitem.get_closest_marker("side_by_side"):
            return None
        if pyfuncitem.nodeid not in self._futures:
            self._start_all(pyfuncitem)
        self._futures[pyfuncitem.nodeid].result()
        return True

    def _start_all(self, first: pytest.Function) -> None:
        pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        items = [item for item in first.session.items if isinstance(item, pytest.Function)]
        marked = [(mark, item) for item in items if (mark := item.get_closest_marker("side_by_side"))]
        for _, item in sorted(marked, key=lambda pair: -pair[0].kwargs.get("seconds", 30)):
            params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
            self._futures[item.nodeid] = pool.submit(item.obj, lab=first.funcargs["lab"], **params)
        pool.shutdown(wait=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and what it means."""
    words = "side_by_side(seconds=30): runs at the same time as all others of this mark, the longest first"
    config.addinivalue_line("markers", words)
    config.pluginmanager.register(SideBySide())
