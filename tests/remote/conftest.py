"""Fixtures: a machine, and both ways in which a job is kept together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from remote_machine import Machine, wait_for


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine, on which nothing is left running after the test."""
    root = tmp_path / "machine"
    root.mkdir()
    machine = Machine(root)
    yield machine
    for process in machine.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: not machine.processes(), "the test's processes are gone")


@pytest.fixture(params=[True, False], ids=["in-a-namespace", "without-namespace"])
def isolate(request: pytest.FixtureRequest) -> bool:
    """Both ways in which a job is kept together."""
    return bool(request.param)
