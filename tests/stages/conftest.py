"""Fixtures: a stand-in recipe with its run, and nothing left running afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from finetune import foreground, settings
from finetune.machines.processes import MARK
from finetune.stages.context import RunContext
from finetune.stages.preflight import run_preflight
from finetune.store import RunStore, StageRecord
from tests.fakes.recipes import write_stand_in_recipe
from tests.fakes.trainer import FAKE_MAXTEXT, FakeTrainer

POLL_SECONDS = 0.05


@dataclass
class Bench:
    """One recipe on a bench of its own: its file, its trainer, its runs."""

    home: Path
    recipe_path: Path
    trainer: FakeTrainer

    def context(self, run_id: str = "one", **params: Any) -> RunContext:
        """Return a run as a new process would see it."""
        return RunContext.load(self.recipe_path, run_id, params)

    def run(self, run_id: str = "one", **params: Any) -> list[str]:
        """Run the whole recipe in the foreground, and return what was said."""
        said: list[str] = []
        foreground.run_recipe(self.context(run_id, **params), said.append)
        return said

    def make_ready(self) -> None:
        """Do what comes before the training: its data and a converted checkpoint are there, and no machine."""
        run_preflight(self.context())
        converted = Path(self.context().plan.stage("convert_checkpoint").outputs["checkpoint"])
        (converted / "0" / "items").mkdir(parents=True)

    def store(self, run_id: str = "one") -> RunStore:
        return self.context(run_id).store

    def stage(self, name: str, run_id: str = "one") -> StageRecord:
        record = self.store(run_id).read_stage(name)
        assert record is not None, f"{name} left no record"
        return record

    def steps(self, run_id: str = "one") -> list[int]:
        """Return the steps on record, in the order of the file."""
        return [event["step"] for event in self.store(run_id).read_events() if event["kind"] == "step"]

    def machines(self) -> list[Path]:
        folder = self.home / "machines"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def trainer_process(self) -> psutil.Process:
        """Return the stand-in's process that was started last."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if str(FAKE_MAXTEXT) in process.cmdline():
                    found.append(process)
        assert found, "no stand-in runs"
        return max(found, key=lambda process: process.create_time())

    def kill_trainer(self) -> None:
        """Kill the stand-in that runs, as the kernel does when memory runs out."""
        self.trainer_process().kill()

    def processes(self) -> list[psutil.Process]:
        """Return what runs on this bench's machines."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                named = process.environ().get(MARK, "").startswith(f"{self.recipe_path.stem}-")
                if named and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@contextlib.contextmanager
def open_workshop(root: Path) -> Iterator[Callable[..., Bench]]:
    """Give what makes benches below a folder; what still runs on one at the end is killed."""
    benches: list[Bench] = []

    def make(changes: Mapping[str, Any] | None = None) -> Bench:
        # A name of its own: processes are found by it.
        _, path, trainer = write_stand_in_recipe(root, f"bench-{uuid.uuid4().hex[:8]}", changes)
        benches.append(Bench(root / "home", path, trainer))
        return benches[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINETUNE_HOME", str(root / "home"))
        patch.setenv("FINETUNE_RECIPES_DIR", str(root / "recipes"))
        patch.delenv("FINETUNE_STORE", raising=False)
        patch.setattr(foreground, "POLL_SECONDS", 0.05)
        yield make
    for bench in benches:
        for process in bench.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a bench for a recipe with changes."""
    with open_workshop(tmp_path) as make:
        yield make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A bench for the recipe of ten steps."""
    return make_bench()


class Background:
    """A function that runs in a thread, until its result or its error is asked for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(function)

    def join(self) -> Any:
        """Wait for its end; returns or raises what it did."""
        try:
            return self._future.result(timeout=60)
        finally:
            self._pool.shutdown(wait=False)


@pytest.fixture
def in_background() -> Callable[[Callable[[], Any]], Background]:
    """Start a function in a thread."""
    return Background


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object], str], None]:
    """Wait for a condition, for a minute at most."""

    def wait(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(POLL_SECONDS)

    return wait


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``python -m finetune`` with the settings of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "finetune", *words]
        environment = os.environ | {"PYTHONPATH": str(settings.INCLUDE_DIR)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
