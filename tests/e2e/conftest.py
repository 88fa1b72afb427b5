"""One Airflow, one store and two runs of the tiny recipe with real MaxText, for all end-to-end tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import wait_for
from finetune.store import RunStore, StageRecord, Store

# Each run's recipe: the shipped one, or the same with MaxText's own evaluations, which take a minute more.
RECIPES = {"first": "tiny-measured", "killed": "tiny-local"}
EVALUATION = "  eval: {per_device_batch_size: 8}\n"
RUN_SECONDS = 1200
PLANTED_TOKEN = "hf_" + "PlantedTokenThatMustNotLeak" + "0123456"


@dataclass(frozen=True)
class Pipeline:
    """A running Airflow with its home."""

    airflow: AirflowLocal
    home: Path

    def dag_id(self, run_id: str) -> str:
        return f"finetune_{RECIPES[run_id]}"

    def store(self, run_id: str) -> RunStore:
        return Store(f"file://{self.home}/store").run(RECIPES[run_id], run_id)

    def stage(self, run_id: str, name: str) -> StageRecord:
        record = self.store(run_id).read_stage(name)
        assert record is not None, f"{name} of {run_id} left no record"
        return record

    def trigger(self, run_id: str, params: dict[str, int] | None = None) -> None:
        dag_id = self.dag_id(run_id)
        wait_for("the DAG", lambda: self.airflow.api.dag(dag_id), 120)
        self.airflow.api.set_paused(dag_id, paused=False)
        self.airflow.api.trigger(dag_id, params, run_id=run_id)

    def wait(self, run_id: str) -> str:
        return self.airflow.api.wait_for_run(self.dag_id(run_id), run_id, RUN_SECONDS).state

    def explain(self, run_id: str) -> str:
        return "\n".join(
            f"{stage.stage}: {stage.state} {stage.error or ''}" for stage in self.store(run_id).read_stages()
        )

    def machines(self) -> list[Path]:
        folder = self.home / "machines"
        return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psutil.Process]:
    """Somebody else's process, which looks like what MaxText kills: its parent is pid 1."""
    note = tmp_path_factory.mktemp("stranger") / "pid"
    program = (
        f"import os, pathlib, sys; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); sys.stdin.read()"
    )
    reader, writer = os.pipe()
    subprocess.run(
        ["setsid", "--fork", sys.executable, "-c", program, "multiprocessing.resource_tracker"],
        stdin=reader,
        check=True,
    )
    pid = wait_for(
        "the stranger", lambda: note.read_text() if note.exists() and note.read_text() else None, 20
    )
    process = psutil.Process(int(pid))
    assert process.ppid() == 1
    yield process
    os.close(writer)
    os.close(reader)


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory, stranger: psutil.Process) -> Iterator[Pipeline]:
    home, recipes = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("recipes")
    shipped = (settings.INCLUDE_DIR / "recipes" / "tiny-local.yaml").read_text()
    measured = shipped.replace("name: tiny-local", "name: tiny-measured").replace(
        "  options:\n", EVALUATION + "  options:\n"
    )
    (recipes / "tiny-local.yaml").write_text(shipped)
    (recipes / "tiny-measured.yaml").write_text(measured)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINETUNE_HOME", str(home))
        patch.setenv("FINETUNE_RECIPES_DIR", str(recipes))
        patch.setenv("HF_TOKEN", PLANTED_TOKEN)
        with AirflowLocal(home=home) as airflow:
            yield Pipeline(airflow, home)


@pytest.fixture(scope="session")
def first_run(pipeline: Pipeline) -> str:
    """A run from nothing: no environment, no model, no checkpoint."""
    pipeline.trigger("first")
    assert pipeline.wait("first") == "success", pipeline.explain("first")
    return "first"


@pytest.fixture(scope="session")
def check_python(pipeline: Pipeline, first_run: str) -> Path:
    """The interpreter of an environment with transformers and PyTorch."""
    environments = (pipeline.home / "store" / "cache" / "environments").iterdir()
    return next(
        folder / "bin" / "python" for folder in environments if list(folder.glob("lib/*/site-packages/torch"))
    )
