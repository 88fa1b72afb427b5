"""A machine that real jobs run on, and the eyes to see what they leave."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from finetune.remote.jobs import JobHandle, Jobs, JobStatus
from finetune.remote.local import LocalTransport
from finetune.settings import ON_MACHINE_DIR

MARK = "FINETUNE_TEST_MARK"
DEADLINE_SECONDS = 30


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; fail with its name when it does not in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {DEADLINE_SECONDS} s: {what}")
        time.sleep(0.02)


class Machine:
    """A directory with jobs, whose processes all carry a mark of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = uuid.uuid4().hex
        self.script_path = str(ON_MACHINE_DIR / "job.py")
        self.jobs = Jobs(LocalTransport({MARK: self.mark}), sys.executable, self.script_path, str(root))

    def start(
        self, script: str, *, name: str = "train", digest: str = "d", isolate: bool = True
    ) -> JobHandle:
        """Start a job and return its handle."""
        return self.jobs.start(name, digest, script, {"ROOT": str(self.root)}, isolate)[0]

    def finish(self, handle: JobHandle) -> JobStatus:
        """Wait until a job has ended, and return its status with the whole log."""
        wait_for(lambda: self.jobs.poll(handle, 0).state != "running", f"{handle} ended")
        return self.jobs.poll(handle, 0)

    def processes(self, command: str = "") -> list[psutil.Process]:
        """Return the machine's live processes whose command line contains a text."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if command in " ".join(read_command_line(process))]

    def process(self, command: str) -> psutil.Process:
        """Wait for the one process whose command line contains a text."""
        found: list[psutil.Process] = []

        def is_alone() -> bool:
            found[:] = self.processes(command)
            return len(found) == 1

        wait_for(is_alone, f"one process with {command!r}")
        return found[0]

    def supervisor(self, handle: JobHandle) -> psutil.Process:
        """Return a job's supervisor."""
        text = (self.directory(handle) / "pid").read_text()
        return psutil.Process(int(text.split()[0]))

    def directory(self, handle: JobHandle) -> Path:
        """Return where a generation's files are."""
        return self.root / "jobs" / handle.name / str(handle.generation)

    def wait_for_file(self, name: str) -> str:
        """Wait for a file that a job writes below the root, and return what is in it."""
        path = self.root / name
        wait_for(lambda: path.exists() and path.read_text(), f"{name} is written")
        return path.read_text()


def read_command_line(process: psutil.Process) -> list[str]:
    """Return a process's command line; nothing where it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
