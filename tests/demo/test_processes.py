"""Processes of ours are found and ended, whatever they do; nobody else's is touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from finetune.demo.processes import Household, ProcessIdentity, is_zombie, proportional_memory_bytes

DEADLINE_SECONDS = 20.0
IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(99)
"""
WITH_CHILD = """
import os, time
if os.fork() == 0:
    print('up', flush=True)
time.sleep(99)
"""
WITH_UNMARKED_CHILD = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; print("up", flush=True); time.sleep(99)'], env={})
time.sleep(99)
"""
WITH_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    print('up', flush=True)
time.sleep(99)
"""


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program in a session of its own and wait until it says that it is up."""
    spawned: list[subprocess.Popen[str]] = []

    def start(code: str, *, cwd: Path = tmp_path, mark: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "TEST_MARK": mark},
            start_new_session=True,
        )
        spawned.append(process)
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in spawned:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(DEADLINE_SECONDS)
        assert process.stdout
        process.stdout.close()


def pids(processes: list[psutil.Process]) -> set[int]:
    return {process.pid for process in processes}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_is_not_mistaken_for_a_later_one_with_its_number(spawn) -> None:
    process = spawn(IGNORES_TERM)
    known = ProcessIdentity.of("it", process.pid)

    assert known.find() is not None
    assert known.model_copy(update={"started": known.started - 60}).find() is None


def test_a_process_that_ended_is_not_found_even_before_its_parent_asked_for_its_exit_code(spawn) -> None:
    process = spawn(WITH_CHILD)
    known = ProcessIdentity.of("it", process.pid)

    process.kill()

    wait_until(lambda: known.find() is None)


def test_members_are_a_leader_with_its_children(spawn, tmp_path) -> None:
    process = spawn(WITH_CHILD)
    household = Household([ProcessIdentity.of("it", process.pid)], tmp_path, {})

    children = pids(psutil.Process(process.pid).children())

    assert len(children) == 1
    assert pids(household.members()) == {process.pid} | children


@pytest.mark.parametrize("asked_for_its_exit_code", [True, False])
def test_children_of_a_killed_leader_are_still_members(spawn, tmp_path, asked_for_its_exit_code) -> None:
    process = spawn(WITH_CHILD)
    known = ProcessIdentity.of("it", process.pid)
    household = Household([known], tmp_path, {})
    children = pids(psutil.Process(process.pid).children())

    process.kill()
    if asked_for_its_exit_code:
        process.wait(DEADLINE_SECONDS)
    wait_until(lambda: known.find() is None)

    assert pids(household.members()) == children
    assert household.end(5, 5) == []
    assert household.members() == []


def test_orphans_of_a_strangers_session_that_has_the_number_of_ours_are_spared(spawn, tmp_path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = spawn(WITH_CHILD, cwd=elsewhere)
    household = Household([ProcessIdentity(name="it", pid=process.pid, started=1.0)], tmp_path / "ours", {})

    process.kill()
    process.wait(DEADLINE_SECONDS)

    assert household.members() == []


def test_what_left_the_session_is_found_by_its_mark(spawn, tmp_path) -> None:
    process = spawn(WITH_DAEMON, mark="ours-1")
    household = Household([ProcessIdentity.of("it", process.pid)], tmp_path, {"TEST_MARK": "ours-1"})
    stranger = spawn(IGNORES_TERM, mark="ours-10")

    assert len(household.members()) == 2
    assert household.end(5, 5) == []

    assert household.members() == []
    assert stranger.poll() is None


def test_children_that_hide_the_mark_are_killed_with_a_component_that_is_not_on_record(
    spawn, tmp_path
) -> None:
    process = spawn(WITH_UNMARKED_CHILD, mark="ours-1")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]

    assert Household([], tmp_path, {"TEST_MARK": "ours-1"}).kill(grace_seconds=5) == []

    assert len(family) == 2
    assert not [member for member in family if member.is_running() and not is_zombie(member)]


def test_a_process_that_ignores_being_asked_is_killed(spawn, tmp_path) -> None:
    process = spawn(IGNORES_TERM)
    household = Household([ProcessIdentity.of("it", process.pid)], tmp_path, {})

    assert household.end(0.1, 0.1) == []

    assert not psutil.pid_exists(process.pid)


def test_memory_counts_what_is_shared_once(spawn) -> None:
    process = spawn(WITH_CHILD)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]

    resident = sum(member.memory_info().rss for member in family)

    assert 0 < proportional_memory_bytes(family) < resident
