"""Processes that outlive the command that started them: recognised, found and ended, and nobody else's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil
from pydantic import BaseModel

# Two readings of one process's start time differ by the rounding of the kernel's clock ticks (1/100 s).
START_TIME_TOLERANCE_SECONDS = 0.05


class ProcessIdentity(BaseModel, frozen=True):
    """A process that cannot be mistaken for a later one with the same number."""

    name: str
    pid: int
    started: float

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessIdentity:
        """Take the identity of a process that was just started and not yet waited for."""
        return cls(name=name, pid=pid, started=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """Return the process while it runs; None once it ended, also when another has its number now."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > START_TIME_TOLERANCE_SECONDS:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.NoSuchProcess:
            return None


class Household:
    """All processes of one Airflow: members of its components' sessions, and carriers of its marks.

    Args:
        leaders: The components; each leads a session of its own, and works in ``folder``.
        folder: The components' working directory. It tells the orphans of a killed component from the members
            of a stranger's session that was given the same number.
        marks: Values of variables, ``{"NAME": "value"}``; whoever has one in its environment is ours.
    """

    def __init__(self, leaders: Iterable[ProcessIdentity], folder: Path, marks: Mapping[str, str]) -> None:
        self.leaders = list(leaders)
        self.folder = folder
        self.marks = dict(marks)

    def members(self) -> list[psutil.Process]:
        """Return every process of ours that runs now, this one excepted."""
        living = {leader.pid for leader in self.leaders if leader.find()}
        ended = {leader.pid for leader in self.leaders if not psutil.pid_exists(leader.pid)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                session = os.getsid(process.pid)
                orphaned = session in ended and self._works_here(process)
                if session in living or orphaned or self._is_marked(process):
                    found.append(process)
        return found

    def _works_here(self, process: psutil.Process) -> bool:
        return Path(process.cwd()) == self.folder

    def _is_marked(self, process: psutil.Process) -> bool:
        environment = process.environ()
        return any(environment.get(name) == value for name, value in self.marks.items())

    def end(self, patience_seconds: float, grace_seconds: float) -> list[psutil.Process]:
        """End every member and return those that still run, which should be none.

        The components are asked first, since they end their own children in good order; after
        ``patience_seconds`` every member is asked; after ``grace_seconds`` more, what is left is killed.
        """
        leaders = [process for leader in self.leaders if (process := leader.find())]
        _signal_all(leaders, psutil.Process.terminate)
        wait_until_gone(leaders, patience_seconds)
        rest = self.members()
        _signal_all(rest, psutil.Process.terminate)
        wait_until_gone(rest, grace_seconds)
        return self.kill(grace_seconds)

    def kill(self, grace_seconds: float) -> list[psutil.Process]:
        """Kill every member, and what they start meanwhile; return those that still run."""
        for _ in range(3):
            rest = self.members()
            if not rest:
                return []
            _signal_all(rest, psutil.Process.kill)
            wait_until_gone(rest, grace_seconds)
        return self.members()


def wait_until_gone(processes: Iterable[psutil.Process], timeout_seconds: float) -> None:
    """Wait until all have ended, or until the time is over."""
    psutil.wait_procs(list(processes), timeout=timeout_seconds)


def proportional_memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of these processes in all, a page that several share counted once (PSS; Linux)."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def _signal_all(processes: Iterable[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            send(process)
