"""The demo: what it prints of a run that ends well or badly, and what an interruption leaves (nothing)."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import TOY_DAG, TOY_RECIPE
from rich.console import Console

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal, AirflowRunsDifferently
from finetune.demo.api import wait_for
from finetune.demo.demo import Demo
from finetune.demo.shutdown import describe_orphans, shut_down
from finetune.machines.local import LocalMachineProvider

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

DEADLINE_SECONDS = 120.0


@pytest.fixture
def run_demo(toy_airflow, toy_environment, toy_store) -> Iterator[Callable[[], tuple[int, str]]]:
    """Run the demo on the shared Airflow; returns its exit code and what it printed."""

    def run() -> tuple[int, str]:
        printed = io.StringIO()
        code = Demo(toy_airflow, TOY_RECIPE, Console(file=printed, width=200, highlight=False)).run()
        return code, printed.getvalue()

    yield run
    (toy_store / "failing_stage").unlink(missing_ok=True)


def test_a_run_that_ends_well_is_told_from_its_first_stage_to_its_answers(
    run_demo, toy_store, toy_airflow
) -> None:
    code, printed = run_demo()

    assert code == 0
    lines = printed.splitlines()
    assert "  → convert_checkpoint started" in lines
    assert [line for line in lines if "✓ convert_checkpoint" in line and "1.5 s" in line]
    assert [line for line in lines if "✓ install_trainer" in line and "reused: the same was made" in line]
    assert [line for line in lines if "✓ train" in line and "12 steps, loss 2.000" in line]
    assert "  before 3.100, after 2.200" in lines
    assert "    after:  I'm doing great!" in lines
    run = next((toy_store / "runs" / TOY_RECIPE).glob("demo-*"))
    assert f"  model       {run}/model" in lines
    assert f"  run record  {run}/run.json" in lines
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert f"{toy_airflow.base_url}/dags/{TOY_DAG}/runs/{run.name}" in printed
    assert f"admin / {toy_airflow.secrets.admin_password}" in printed
    assert toy_airflow.missing_components() == []


def test_a_stage_that_fails_is_told_in_the_words_of_its_record(run_demo, toy_store) -> None:
    (toy_store / "failing_stage").write_text("convert_checkpoint")

    code, printed = run_demo()

    assert code == 1
    assert "✗ convert_checkpoint" in printed
    assert "convert_checkpoint failed\nStageFailed: as wished\n  Next: wish it away" in printed
    assert "verdict failed" not in printed
    assert "make stop" in printed


def test_a_stage_that_fails_without_a_record_is_told_by_the_end_of_its_log(run_demo, toy_store) -> None:
    (toy_store / "failing_stage").write_text("check_model")

    code, printed = run_demo()

    assert code == 1
    assert "RuntimeError: this stands in the log only" in printed


class DemoProcess:
    """The demo as a process with a home of its own, whose training goes on until somebody ends it."""

    def __init__(self, home: Path) -> None:
        self.airflow = AirflowLocal(home)
        self.machines = LocalMachineProvider(home / "machines")
        environment = {
            **os.environ,
            "FINETUNE_HOME": str(home),
            "FINETUNE_STORE": f"file://{home}/store",
            "FINETUNE_TOY_STEP_SECONDS": "60",
            "PYTHONPATH": os.pathsep.join([str(settings.INCLUDE_DIR), str(Path(__file__).parent)]),
        }
        self.output = home / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("drive_demo.py"))],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_for_line(self, text: str) -> None:
        def found() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return text in self.output.read_text()

        wait_for(text, found, DEADLINE_SECONDS)

    def everything(self) -> list[psutil.Process]:
        """Return all processes that the demo has started, its machine's job included."""
        job = [process for process in psutil.process_iter() if self._is_job(process)]
        return [*self.airflow.processes(), *job]

    def _is_job(self, process: psutil.Process) -> bool:
        names = [machine.name for machine in self.machines.find({})]
        try:
            return process.environ().get("FINETUNE_MACHINE", "").partition("/")[0] in names
        except (psutil.Error, OSError):
            return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        self.airflow.kill()
        for machine in self.machines.find({}):
            self.machines.delete(machine)


@pytest.fixture
def training(tmp_path) -> Iterator[DemoProcess]:
    """A demo in the middle of its training."""
    demo = DemoProcess(tmp_path)
    try:
        demo.wait_for_line("→ train started")
        yield demo
    finally:
        demo.close()


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_tears_down_its_run_and_leaves_nothing(training, number) -> None:
    processes = training.everything()
    assert [process for process in processes if "sleep" in process.name()]

    training.process.send_signal(number)

    assert training.process.wait(DEADLINE_SECONDS) == 130
    assert still_running(processes) == []
    assert training.machines.find({}) == []
    printed = training.output.read_text()
    assert "Ending run" in printed
    assert "Nothing of it is left running." in printed
    assert "Killing everything" not in printed


def test_an_interruption_while_airflow_starts_leaves_nothing(tmp_path) -> None:
    demo = DemoProcess(tmp_path)
    try:
        processes = wait_for("a component", lambda: [*demo.airflow.processes()][1:], DEADLINE_SECONDS)

        demo.process.send_signal(signal.SIGINT)

        assert demo.process.wait(DEADLINE_SECONDS) == 130
        assert still_running(processes) == []
        assert demo.airflow.processes() == []
    finally:
        demo.close()


def test_a_second_interruption_kills_and_leaves_nothing_either(training) -> None:
    processes = training.everything()
    training.process.send_signal(signal.SIGINT)
    training.wait_for_line("Ending run")

    training.process.send_signal(signal.SIGINT)

    assert training.process.wait(DEADLINE_SECONDS) == 130
    assert "Killing everything." in training.output.read_text()
    assert still_running(processes) == []
    assert training.machines.find({}) == []


def test_other_settings_are_refused_while_a_run_is_going_on(training, tmp_path) -> None:
    before = training.airflow.running

    with pytest.raises(AirflowRunsDifferently, match="make stop"):
        AirflowLocal(training.airflow.home, dags=tmp_path).start()

    assert training.airflow.running == before
    assert training.airflow.missing_components() == []


def test_machines_that_a_killed_airflow_left_are_told_and_taken_up_again(training) -> None:
    (machine,) = training.machines.find({})
    training.process.kill()
    training.airflow.kill()

    assert shut_down(training.airflow, Console(file=io.StringIO())) is False

    (told,) = describe_orphans(training.airflow)
    assert machine.name in told
    assert "make start" in told


def test_make_stop_ends_a_run_that_is_going_on(training) -> None:
    processes = training.everything()

    assert shut_down(training.airflow, Console(file=io.StringIO())) is True

    assert still_running(processes) == []
    assert training.machines.find({}) == []
    assert training.process.wait(DEADLINE_SECONDS) == 1
    printed = training.output.read_text()
    assert "make stop" in printed
    assert "Traceback" not in printed
