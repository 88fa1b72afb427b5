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
        holder = self.find_holder()
        return holder if holder and self._is_same(holder) and not is_zombie(holder) else None

    def find_holder(self) -> psutil.Process | None:
        """Return whoever has the process's number now, zombies included; None where nobody has."""
        try:
            return psutil.Process(self.pid)
        except psutil.NoSuchProcess:
            return None

    def owns_session(self) -> bool:
        """Say whether the process, running or a zombie, still leads the session of its number."""
        holder = self.find_holder()
        return holder is not None and self._is_same(holder)

    def _is_same(self, holder: psutil.Process) -> bool:
        try:
            return abs(holder.create_time() - self.started) <= START_TIME_TOLERANCE_SECONDS
        except psutil.NoSuchProcess:
            return False


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
        processes = [one for one in psutil.process_iter() if one.pid != os.getpid()]
        self._learn_leaders(processes)
        led = {leader.pid for leader in self.leaders if leader.owns_session()}
        leaderless = {leader.pid for leader in self.leaders if leader.find_holder() is None}
        found = []
        for process in processes:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                session = os.getsid(process.pid)
                ours = session in led or (session in leaderless and self._works_here(process))
                if (ours or self._is_marked(process)) and not is_zombie(process):
                    found.append(process)
        return found

    def _learn_leaders(self, processes: Iterable[psutil.Process]) -> None:
        """Take up components that were started and not put on record: their children may hide the mark.

        A process that sets its title overwrites what others can read of its environment.
        """
        known = {leader.pid for leader in self.leaders if leader.owns_session()}
        for process in processes:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                leads = os.getsid(process.pid) == process.pid
                if leads and process.pid not in known and self._is_marked(process):
                    self.leaders.append(ProcessIdentity.of(process.name(), process.pid))

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


def is_zombie(process: psutil.Process) -> bool:
    """Say whether a process has ended and only its parent's question for the exit code is outstanding."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


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
