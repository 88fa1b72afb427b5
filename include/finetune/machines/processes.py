"""Find and end the processes of a local machine: each carries the machine's mark in its environment."""

from __future__ import annotations

import contextlib
import time

import psutil

MARK = "FINETUNE_MACHINE"
POLL_SECONDS = 0.05
SETTLE_SECONDS = 1.0
KILL_SECONDS = 10.0  # a killed process that is still there after this hangs in the kernel


def build_mark(name: str, incarnation: str) -> str:
    """Return the value of the mark that everything started on a machine carries."""
    return f"{name}/{incarnation}"


def find_processes(name: str, incarnation: str | None = None) -> list[psutil.Process]:
    """Return the live processes of a machine (of any incarnation), PID namespaces notwithstanding.

    A process whose environment cannot be read belongs to somebody else, so it is not one.
    """
    assert name, "without a name, every process would be somebody's"
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK)
            if mark is None or process.status() == psutil.STATUS_ZOMBIE:
                continue
            owner, _, age = mark.partition("/")
            if owner == name and incarnation in (None, age):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def describe_process(process: psutil.Process) -> str:
    """Return a process in words: pid and the start of its command line."""
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "ended just now"
    return f"process {process.pid} ({command[:100]})"


def wait_for_processes(name: str, incarnation: str | None, seconds: float) -> list[psutil.Process]:
    """Wait until a machine has no process any more; return those that remain."""
    deadline = time.monotonic() + seconds
    while remaining := find_processes(name, incarnation):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return remaining


def end_processes(
    name: str, incarnation: str | None, grace_seconds: float
) -> tuple[list[str], list[psutil.Process]]:
    """End every process of a machine; return what was ended, in words, and those that remain.

    A short command that somebody runs there just now may finish first. The rest gets TERM, then KILL, twice,
    since a process may have started another one in the meantime.
    """
    remaining = wait_for_processes(name, incarnation, SETTLE_SECONDS)
    ended = [describe_process(process) for process in remaining]
    for method, seconds in (("terminate", grace_seconds), ("kill", KILL_SECONDS), ("kill", KILL_SECONDS)):
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, method)()
        remaining = wait_for_processes(name, incarnation, seconds)
    return ended, remaining
