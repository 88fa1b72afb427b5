"""How a job ends: what is recorded, and that nothing goes on after it."""

from __future__ import annotations

import signal
import sys

import pytest
from remote_machine import Machine, wait_for

# A child, a grandchild in a session of its own, and one that has no parent any more.
FAMILY = """
live() { echo 'echo alive >> "$ROOT/family"; exec sleep '$1; }
sh -c "$(live 1001)" &
setsid sh -c "$(live 1002)" &
(setsid nohup sh -c "$(live 1003)" > /dev/null 2>&1 &)
until [ "$(wc -l < "$ROOT/family")" = 3 ]; do :; done 2> /dev/null
echo ready > "$ROOT/ready"
"""


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("no-such-command", 127),
        ("if then", 2),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("exec sh -c 'kill -SEGV $$'", 139),
    ],
)
def test_every_ending_is_recorded(machine: Machine, isolate: bool, script: str, exit_code: int) -> None:
    status = machine.finish(machine.start(script, isolate=isolate))
    assert (status.state, status.exit_code) == ("exited", exit_code)


def test_a_killed_supervisor_takes_the_job_down_and_the_next_start_is_a_new_generation(
    machine: Machine, isolate: bool
) -> None:
    handle = machine.start(FAMILY + "sleep 1004", isolate=isolate)
    machine.wait_for_file("ready")

    machine.supervisor(handle).kill()

    wait_for(lambda: machine.jobs.poll(handle, 0).state == "lost", "the job is lost")
    wait_for(lambda: not machine.processes(), "nothing of it runs")
    status = machine.jobs.poll(handle, 0)
    assert status.exit_code is None
    assert "killed" in str(status.reason)
    assert machine.start("exit 0", isolate=isolate).generation == 2


def test_a_killed_command_has_exited_with_137(machine: Machine, isolate: bool) -> None:
    handle = machine.start(FAMILY + "sleep 1004", isolate=isolate)
    machine.wait_for_file("ready")

    shell = machine.process("sleep 1004").parent()
    assert shell is not None
    shell.kill()

    status = machine.finish(handle)
    assert (status.state, status.exit_code) == ("exited", 137)
    assert machine.processes("sleep") == []


def test_a_killed_keeper_has_exited_with_137_and_leaves_nothing(machine: Machine, isolate: bool) -> None:
    handle = machine.start(FAMILY + "sleep 1004", isolate=isolate)
    machine.wait_for_file("ready")

    [keeper] = machine.supervisor(handle).children()
    keeper.kill()

    status = machine.finish(handle)
    assert (status.state, status.exit_code) == ("exited", 137)
    assert machine.processes("sleep") == []


def test_what_a_job_left_in_the_background_is_gone_when_it_has_ended(machine: Machine, isolate: bool) -> None:
    handle = machine.start(FAMILY + "exit 6", isolate=isolate)

    status = machine.finish(handle)

    assert (status.state, status.exit_code) == ("exited", 6)
    assert machine.processes("sleep") == []


@pytest.mark.parametrize("grace_seconds", [10, 0])
def test_cancel_ends_grandchildren_in_sessions_of_their_own(
    machine: Machine, isolate: bool, grace_seconds: float
) -> None:
    handle = machine.start(FAMILY + "sleep 1004", isolate=isolate)
    machine.wait_for_file("ready")

    assert machine.jobs.cancel(handle, grace_seconds) == []

    assert machine.processes() == []
    status = machine.jobs.poll(handle, 0)
    assert (status.state, status.cancelled) == ("exited", True)
    assert status.exit_code in (137, 143)


def test_cancel_lets_a_program_save_its_work_and_the_script_go_no_further(
    machine: Machine, isolate: bool
) -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    open('saved', 'w').write('all of it')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('../../../ready', 'w').write('ready')\n"
        "time.sleep(1000)\n"
    )
    handle = machine.start(f'{sys.executable} -c "{program}"; echo next line', isolate=isolate)
    machine.wait_for_file("ready")

    assert machine.jobs.cancel(handle, grace_seconds=20) == []

    assert (machine.directory(handle) / "saved").read_text() == "all of it"
    status = machine.jobs.poll(handle, 0)
    assert b"next line" not in status.log
    assert status.exit_code == 143


def test_cancel_kills_what_ignores_the_signal(machine: Machine, isolate: bool) -> None:
    handle = machine.start(
        'trap "" TERM; sleep 1000 & echo ready > "$ROOT/ready"; while :; do sleep 1000; done', isolate=isolate
    )
    machine.wait_for_file("ready")

    assert machine.jobs.cancel(handle, grace_seconds=0.2) == []

    assert machine.processes() == []
    assert machine.jobs.poll(handle, 0).exit_code == 137


def test_cancel_of_a_job_that_has_ended_or_never_was_does_nothing(machine: Machine) -> None:
    handle = machine.start("exit 5")
    machine.finish(handle)
    assert machine.jobs.cancel(handle) == []
    assert machine.jobs.poll(handle, 0).exit_code == 5
    assert machine.jobs.cancel(handle.model_copy(update={"generation": 9})) == []


def test_a_job_that_the_machine_does_not_know_is_absent(machine: Machine) -> None:
    handle = machine.start("exit 0").model_copy(update={"name": "other"})
    status = machine.jobs.poll(handle, 0)
    assert (status.state, status.exit_code, status.log) == ("absent", None, b"")


def test_the_supervisor_outlives_the_signals_that_end_a_login(machine: Machine, isolate: bool) -> None:
    handle = machine.start("sleep 1000", isolate=isolate)
    supervisor = machine.supervisor(handle)
    assert supervisor.terminal() is None
    machine.process("sleep 1000").send_signal(signal.SIGHUP)
    assert machine.finish(handle).exit_code == 128 + signal.SIGHUP
