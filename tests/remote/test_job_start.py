"""Starting a job: once, whoever asks and however often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from remote_machine import Machine, wait_for

from finetune.settings import INCLUDE_DIR

WAIT_FOR_RELEASE = 'echo begun >> "$ROOT/begun"; until [ -e "$ROOT/release" ]; do sleep 0.05; done; echo done'


def test_many_starts_at_once_make_one_process(machine: Machine) -> None:
    def start(_: int) -> bool:
        return machine.jobs.start("train", "d", WAIT_FOR_RELEASE, {"ROOT": str(machine.root)})[1].attached

    with ThreadPoolExecutor(6) as pool:
        attached = list(pool.map(start, range(6)))

    assert sorted(attached) == [False] + [True] * 5
    assert [entry.handle.generation for entry in machine.jobs.list()] == [1]
    (machine.root / "release").touch()
    assert machine.finish(machine.jobs.list()[0].handle).exit_code == 0
    assert (machine.root / "begun").read_text() == "begun\n"


def test_a_job_goes_on_when_its_client_is_killed_and_the_next_client_attaches(
    machine: Machine, isolate: bool
) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(INCLUDE_DIR)!r})
from finetune.remote.jobs import Jobs
from finetune.remote.local import LocalTransport
jobs = Jobs(LocalTransport(), sys.executable, {machine.script_path!r}, {str(machine.root)!r})
jobs.start("train", "d", {WAIT_FOR_RELEASE!r}, {{"ROOT": {str(machine.root)!r}}}, {isolate})
print("started", flush=True)
sys.stdin.read()
"""
    client = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"started\n"
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()
    machine.wait_for_file("begun")

    handle, status = machine.jobs.start("train", "d", WAIT_FOR_RELEASE, {"ROOT": str(machine.root)}, isolate)

    assert (handle.generation, status.state, status.attached) == (1, "running", True)
    (machine.root / "release").touch()
    ended = machine.finish(handle)
    assert (ended.state, ended.exit_code, ended.log) == ("exited", 0, b"done\n")
    assert (machine.root / "begun").read_text() == "begun\n"


def test_a_result_that_nobody_has_seen_is_returned_and_one_that_was_collected_is_not(
    machine: Machine,
) -> None:
    first = machine.start("exit 4")
    machine.finish(first)

    again, status = machine.jobs.start("train", "d", "exit 4", {})
    assert (again, status.exit_code, status.attached) == (first, 4, True)

    machine.jobs.collect(first)
    anew, status = machine.jobs.start("train", "d", "exit 4", {})
    assert (anew.generation, status.attached) == (2, False)


def test_a_cancelled_job_is_not_taken_for_a_result(machine: Machine) -> None:
    first = machine.start("sleep 1000")
    assert machine.jobs.cancel(first) == []
    assert machine.jobs.poll(first, 0).cancelled

    anew, status = machine.jobs.start("train", "d", "sleep 1000", {})
    assert (anew.generation, status.attached, status.cancelled) == (2, False, False)


def test_another_digest_ends_the_running_job_before_its_own_begins(machine: Machine, isolate: bool) -> None:
    first = machine.start("sleep 1000", digest="old", isolate=isolate)
    old = machine.process("sleep 1000")

    second = machine.start("sleep 1001", digest="new", isolate=isolate)

    assert not old.is_running()
    assert second.generation == 2
    assert machine.jobs.poll(first, 0).state == "exited"
    assert machine.jobs.poll(first, 0).cancelled
    machine.process("sleep 1001")


def test_jobs_of_other_names_do_not_meet(machine: Machine) -> None:
    train = machine.start("sleep 1000", name="train")
    export = machine.start("exit 0", name="export")
    machine.finish(export)
    machine.jobs.cancel(export)
    assert machine.jobs.poll(train, 0).state == "running"
    assert {entry.handle for entry in machine.jobs.list()} == {train, export}


def test_the_job_runs_in_its_own_directory_with_the_variables_it_was_given(machine: Machine) -> None:
    handle, _ = machine.jobs.start(
        "train", "d", 'pwd; echo "$GREETING"; read -r x || echo no input', {"GREETING": "hé"}
    )
    assert machine.finish(handle).log.decode() == f"{machine.directory(handle)}\nhé\nno input\n"


def test_a_job_that_a_killed_start_left_without_a_process_is_lost_and_begun_anew(machine: Machine) -> None:
    half_made = machine.root / "jobs" / "train" / "1"
    half_made.mkdir(parents=True)
    assert [entry.status.state for entry in machine.jobs.list()] == ["lost"]
    assert machine.start("exit 0").generation == 2


def test_a_later_process_with_the_same_pid_is_not_the_job(machine: Machine) -> None:
    handle = machine.start("sleep 1000")
    supervisor = machine.supervisor(handle)
    supervisor.kill()
    wait_for(lambda: not machine.processes("job.py"), "the supervisor is gone")
    pid_file = Path(machine.directory(handle) / "pid")
    _, started = pid_file.read_text().split(" ", 1)

    pid_file.write_text(f"{os.getpid()} {started}")

    assert machine.jobs.poll(handle, 0).state == "lost"
