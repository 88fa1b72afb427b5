"""Machines on this very computer: a working directory each, and the processes that carry its mark."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from finetune import settings
from finetune.errors import MachineFault
from finetune.machines.base import (
    HALF_MADE,
    ROLES,
    DeletionReport,
    MachineRecord,
    MachineSpec,
    Role,
    build_machine_name,
)
from finetune.machines.processes import MARK, build_mark, describe_process, end_processes, find_processes
from finetune.remote.jobs import Jobs
from finetune.remote.local import LocalTransport

KIND = "local"
RECORD_FILE = "machine.json"
GRACE_SECONDS = 5.0


class LocalMachineProvider:
    """Makes a directory for each machine below ``base_dir``, and deletes it with all that runs in it."""

    def __init__(self, base_dir: Path | None = None) -> None:
        self._base_dir = (base_dir or settings.local_machines_dir()).absolute()

    def create(self, spec: MachineSpec, labels: Mapping[str, str]) -> MachineRecord:
        """Return the run's machine of this role, made now unless it exists.

        What a killed create or delete left half-made is emptied and made anew.

        Raises:
            MachineFault: The directory cannot be written.
        """
        labels = {**labels, "role": spec.role}
        name = build_machine_name(labels)
        directory = self._base_dir / name
        try:
            with self._locked(name, create=True):
                record = read_record(directory)
                if record is None:
                    self._end_processes(name, None)
                    remove_contents(directory)
                    record = MachineRecord(
                        kind=KIND,
                        name=name,
                        role=spec.role,
                        labels=labels,
                        root=str(directory),
                        price_per_hour=0.0,
                    )
                    write_record(directory, record)
                return record
        except OSError as error:
            raise MachineFault(
                f"The local machine {name} cannot be made: {error}.",
                resource=str(directory),
                next_step=f"Make room or give yourself the right to write in {self._base_dir} "
                "(set FINETUNE_HOME to move it), then clear the stage.",
            ) from error

    def find(self, labels: Mapping[str, str]) -> list[MachineRecord]:
        """Return the machines that carry all these labels.

        Half-made ones, which have lost their labels, are found by the name that recipe and run give them.
        """
        found = []
        for directory in sorted(self._base_dir.iterdir()) if self._base_dir.is_dir() else []:
            record = read_record(directory) or self._describe_half_made(directory, labels)
            if record is not None and labels.items() <= record.labels.items():
                found.append(record)
        return found

    def exists(self, record: MachineRecord) -> bool:
        """Tell whether this very incarnation still exists."""
        current = read_record(self._base_dir / record.name)
        return current is not None and current.incarnation == record.incarnation

    def jobs(self, record: MachineRecord) -> Jobs:
        """Return the machine's jobs; they run job.py where it is, under this interpreter."""
        script_path = settings.ON_MACHINE_DIR / "job.py"
        return Jobs(self.transport(record), sys.executable, str(script_path), record.root)

    def transport(self, record: MachineRecord) -> LocalTransport:
        """Return a transport that marks all that it starts as the machine's."""
        return LocalTransport({MARK: build_mark(record.name, record.incarnation)})

    def delete(self, record: MachineRecord) -> DeletionReport:
        """End the machine's jobs and processes, then remove its directory; a later incarnation is spared.

        Raises:
            MachineFault: A process or a file is still there afterwards.
        """
        directory = self._base_dir / record.name
        try:
            with self._locked(record.name, create=False) as is_there:
                current = read_record(directory)
                if current is not None and current.incarnation != record.incarnation:
                    return DeletionReport(deleted=[])
                deleted = self._cancel_jobs(record) if current is not None else []
                deleted += self._end_processes(record.name, None if is_there else record.incarnation)
                if is_there:
                    remove_contents(directory)
                    directory.rmdir()
                    deleted.append(f"directory {directory}")
        except OSError as error:
            raise MachineFault(
                f"The local machine {record.name} cannot be removed: {error}.",
                resource=str(directory),
                left=f"The directory {directory}; none of its processes.",
                next_step=f"See who owns the files, then run: rm -rf {directory}",
            ) from error
        return DeletionReport(deleted=deleted)

    def leftovers(self, labels: Mapping[str, str]) -> list[str]:
        """Return the directories and processes that still exist for these labels, in words."""
        machines = self.find(labels)
        names = {machine.name for machine in machines} | set(build_names(labels))
        processes = [process for name in sorted(names) for process in find_processes(name)]
        return [
            *(f"directory {machine.root}" for machine in machines),
            *(describe_process(process) for process in processes),
        ]

    def _describe_half_made(self, directory: Path, labels: Mapping[str, str]) -> MachineRecord | None:
        role = build_names(labels).get(directory.name)
        if role is None:
            return None
        return MachineRecord(
            kind=KIND,
            name=directory.name,
            incarnation=HALF_MADE,
            role=role,
            labels={**labels, "role": role},
            root=str(directory),
            created_at=datetime.fromtimestamp(directory.stat().st_mtime, UTC),
        )

    def _cancel_jobs(self, record: MachineRecord) -> list[str]:
        """Cancel what runs, the proper way; what this misses, the search for marked processes finds."""
        jobs = self.jobs(record)
        running = [entry.handle for entry in jobs.list() if entry.status.state == "running"]
        for handle in running:
            jobs.cancel(handle, grace_seconds=GRACE_SECONDS)
        return [f"job {handle.name} (generation {handle.generation})" for handle in running]

    def _end_processes(self, name: str, incarnation: str | None) -> list[str]:
        """End every process that carries a machine's mark; return what was ended, in words."""
        ended, remaining = end_processes(name, incarnation, GRACE_SECONDS)
        if remaining:
            pids = " ".join(str(process.pid) for process in remaining)
            raise MachineFault(
                f"Processes of the local machine {name} cannot be killed.",
                resource=", ".join(describe_process(process) for process in remaining),
                left=f"These processes, and the directory {self._base_dir / name}.",
                next_step=f"Run: kill -9 {pids} (a process that hangs in the kernel needs a restart).",
            )
        return ended

    @contextlib.contextmanager
    def _locked(self, name: str, *, create: bool) -> Iterator[bool]:
        """Hold a machine's directory against other creates and deletes; yield whether it is there."""
        directory = self._base_dir / name
        while True:
            if create:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if create:
                    continue
                yield False
                return
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if is_same_directory(directory, descriptor):
                    yield True
                    return
            finally:
                os.close(descriptor)


def is_same_directory(path: Path, descriptor: int) -> bool:
    """Tell whether a path still leads to the directory that was opened, not to a later one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def build_names(labels: Mapping[str, str]) -> dict[str, Role]:
    """Return the names, with their roles, that machines with these labels can have."""
    if not {"recipe", "run"} <= labels.keys():
        return {}
    roles = [role for role in ROLES if labels.get("role", role) == role]
    return {build_machine_name({**labels, "role": role}): role for role in roles}


def read_record(directory: Path) -> MachineRecord | None:
    """Return a machine's record; none where it is half-made."""
    try:
        return MachineRecord.model_validate_json((directory / RECORD_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def write_record(directory: Path, record: MachineRecord) -> None:
    """Write a record so that no reader sees a half of it."""
    partial = directory / f".{RECORD_FILE}"
    partial.write_text(record.model_dump_json(indent=2))
    partial.replace(directory / RECORD_FILE)


def remove_contents(directory: Path) -> None:
    """Remove everything in a directory, the record first: what is half removed is no machine any more."""
    (directory / RECORD_FILE).unlink(missing_ok=True)
    for path in list(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
