"""Fixtures: a provider of local machines in a folder of its own, with nothing left running afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from finetune.machines.local import LocalMachineProvider
from finetune.machines.processes import MARK


@pytest.fixture
def base_dir(tmp_path: Path) -> Path:
    """The folder of the machines."""
    return tmp_path / "machines"


@pytest.fixture
def provider(base_dir: Path) -> Iterator[LocalMachineProvider]:
    """A provider; processes that carry the mark of one of its machines are killed after the test."""
    yield LocalMachineProvider(base_dir)
    names = {path.name for path in base_dir.iterdir()} if base_dir.is_dir() else set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK, "").partition("/")[0] in names:
                process.kill()
