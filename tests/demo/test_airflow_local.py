"""An Airflow on this machine starts whole, is found again, minds its own port and ends without a trace."""

from __future__ import annotations

import http.server
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from conftest import TOY_DAG, TOY_DAGS

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.api import wait_for
from finetune.demo.checks import is_taken
from finetune.demo.launch import COMPONENTS, AirflowStartFailed
from finetune.demo.processes import ProcessIdentity, is_zombie

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

GIBIBYTE = 1024**3


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and not is_zombie(process)]


def read_component_logs(airflow: AirflowLocal) -> str:
    return "".join(log.read_text() for log in (airflow.airflow_home / "components").glob("*.log"))


class Stranger(http.server.BaseHTTPRequestHandler):
    """Somebody else's server, which says that it is a healthy Airflow."""

    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[str]]]:
    """The port of somebody else's server, and what it was asked."""
    Stranger.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, Stranger.asked
        server.shutdown()


def test_a_second_start_finds_the_first(toy_airflow) -> None:
    before = toy_airflow.running

    assert toy_airflow.start() is False

    assert toy_airflow.running == before


def test_all_components_run_and_stay_below_the_promised_memory(toy_airflow) -> None:
    assert toy_airflow.missing_components() == []
    assert {toy_airflow.component(name).pid for name in COMPONENTS} <= {
        one.pid for one in toy_airflow.processes()
    }
    assert toy_airflow.memory_bytes() < 1.6 * GIBIBYTE


def test_what_others_must_not_read_is_private(toy_airflow) -> None:
    home = toy_airflow.airflow_home

    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for name in ("airflow.cfg", "secrets.json", "passwords.json", "running.json", "airflow.db"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600


def test_no_log_tells_a_secret(toy_airflow) -> None:
    told = read_component_logs(toy_airflow)

    assert "Starting" in told
    for secret in toy_airflow.secrets.model_dump().values():
        assert secret not in told


def test_stop_ends_every_process_of_this_airflow_and_none_of_another(toy_airflow, make_airflow) -> None:
    airflow = make_airflow(dags=TOY_DAGS)
    airflow.start()
    processes, port = airflow.processes(), airflow.running.port

    assert airflow.stop() is True

    assert len(processes) > len(COMPONENTS)
    assert still_running(processes) == []
    assert (airflow.processes(), airflow.running) == ([], None)
    assert not is_taken(port)
    assert airflow.stop() is False
    assert toy_airflow.missing_components() == []
    assert toy_airflow.api.dag(TOY_DAG)


def test_a_component_that_was_killed_comes_back_with_the_next_start(make_airflow) -> None:
    airflow = make_airflow(dags=TOY_DAGS)
    airflow.start()
    first = airflow.processes()
    airflow.component("scheduler").kill()
    wait_for("its end", lambda: airflow.missing_components() == ["scheduler"], 30)

    assert airflow.start() is True

    assert airflow.missing_components() == []
    assert still_running(first) == []


def test_other_settings_start_an_idle_airflow_anew(make_airflow) -> None:
    airflow = make_airflow(dags=TOY_DAGS)
    airflow.start()
    first = airflow.processes()
    airflow.env["FINETUNE_STORE"] = "file:///another"

    assert airflow.start() is True

    assert still_running(first) == []
    assert airflow.missing_components() == []


def test_a_home_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AirflowStartFailed, match="set FINETUNE_HOME"):
        AirflowLocal(tmp_path / "file" / "home").start()


def test_a_taken_port_is_left_to_its_owner_and_its_server_is_never_asked(make_airflow, stranger) -> None:
    port, asked = stranger
    airflow = make_airflow(dags=TOY_DAGS, port=port)

    airflow.start()

    assert airflow.running.port != port
    assert airflow.api.dags() is not None
    assert asked == []


def test_a_port_lost_at_the_last_moment_is_replaced(make_airflow, stranger, monkeypatch) -> None:
    port, asked = stranger
    choices = iter([port])
    choose = sys.modules["finetune.demo.airflow_local"].choose_port
    monkeypatch.setattr(
        "finetune.demo.airflow_local.choose_port", lambda preferred: next(choices, None) or choose(preferred)
    )
    airflow = make_airflow(dags=TOY_DAGS, port=port)

    airflow.start()

    assert airflow.running.port != port
    assert asked == []


def test_stop_spares_a_process_that_was_given_the_number_of_one_of_ours(make_airflow) -> None:
    airflow = make_airflow(dags=TOY_DAGS)
    airflow.start()
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as bystander:
        try:
            impostor = ProcessIdentity(name="scheduler", pid=bystander.pid, started=1.0)
            running = airflow.running
            components = [impostor if one.name == "scheduler" else one for one in running.components]
            ours = airflow.processes()
            airflow._record(running.model_copy(update={"components": components}))

            airflow.stop()

            assert bystander.poll() is None
            assert still_running(ours) == []
        finally:
            bystander.kill()


def test_an_unreachable_database_is_named_and_nothing_is_left(make_airflow) -> None:
    airflow = make_airflow(database_url="postgresql://nobody:nothing@127.0.0.1:1/none")

    with pytest.raises(AirflowStartFailed, match="FINETUNE_DATABASE_URL") as failure:
        airflow.start()

    assert "nothing" not in str(failure.value).replace("nothing runs", "")
    assert airflow.processes() == []


def test_a_component_that_cannot_start_is_told_with_the_end_of_its_log(make_airflow) -> None:
    airflow = make_airflow(dags=TOY_DAGS, env={"AIRFLOW__CORE__EXECUTOR": "no.such.Executor"})

    with pytest.raises(AirflowStartFailed, match="scheduler ended while starting") as failure:
        airflow.start()

    assert "no.such" in str(failure.value)
    assert airflow.processes() == []


def test_runs_work_on_postgresql(make_airflow, postgres_url, tmp_path) -> None:
    airflow = make_airflow(
        dags=TOY_DAGS, database_url=postgres_url, env={"FINETUNE_STORE": f"file://{tmp_path}/store"}
    )
    airflow.start()
    wait_for("the toy DAG", lambda: airflow.api.dag(TOY_DAG), 60)
    airflow.api.set_paused(TOY_DAG, paused=False)

    run_id = airflow.api.trigger(TOY_DAG)

    assert airflow.api.wait_for_run(TOY_DAG, run_id, 120).state == "success"
    assert not (airflow.airflow_home / "airflow.db").exists()
    assert urlsplit(postgres_url).password not in read_component_logs(airflow)


def test_make_start_status_and_stop_work_from_a_shell(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(settings.INCLUDE_DIR),
        "FINETUNE_HOME": str(tmp_path),
        "FINETUNE_AIRFLOW_PORT": "0",
        "COLUMNS": "200",
    }

    def call(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "finetune.demo", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    assert call("status") == (1, "Airflow is not running.\n")
    try:
        code, told = call("start")
        assert (code, told.splitlines()[0]) == (0, "Airflow is up.")
        assert "http://127.0.0.1:" in told
        assert call("status")[0] == 0
    finally:
        code, told = call("stop")
    assert (code, told) == (0, "Airflow was stopped; nothing of it is left.\n")
    assert call("stop") == (0, "Airflow was not running.\n")
