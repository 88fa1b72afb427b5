"""Start, follow and end detached jobs on a machine, through the protocol of ``on_machine/job.py``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from finetune.errors import MachineFault, MachineLost
from finetune.remote.transport import Completed, Transport

ROOT_IS_GONE = 3  # job.py's exit code
DEFAULT_LIMIT_BYTES = 1 << 20
# A start may first have to end an earlier job, and a cancel waits for what hangs (job.py's KILL_SECONDS).
KILL_MARGIN_SECONDS = 60

JobState = Literal["running", "exited", "lost", "absent"]
Pids = list[int]


class JobHandle(BaseModel):
    """Names one generation of a job; plain data, so that it survives workers and triggers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    generation: int
    digest: str


class JobStatus(BaseModel):
    """What is known about a generation, with the piece of its log that was asked for.

    ``lost`` means that its process is gone without an exit code, and ``reason`` says more; ``absent`` that
    the machine knows no such job. The log is complete, and fully read, once ``state`` is not running and
    ``next_offset == log_size``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: JobState
    exit_code: int | None = None
    log: bytes = b""
    offset: int = 0
    next_offset: int = 0
    log_size: int = 0
    started_at: datetime | None = None
    seconds: float = 0.0
    attached: bool = False
    cancelled: bool = False
    isolation: str | None = None
    reason: str | None = None


class JobEntry(BaseModel):
    """A generation that a machine knows, for lists."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    handle: JobHandle
    status: JobStatus


Entries = list[JobEntry]


def build_command(python: str, script_path: str, verb: str, root: str) -> list[str]:
    """Return the command line of one verb: no secret in it, no user site or PYTHONPATH."""
    return [python, "-I", "-S", script_path, verb, root]


def parse_status(answer: Mapping[str, Any], offset: int = 0) -> JobStatus:
    """Turn an answer of job.py into a status; ``offset`` is the one that was asked for."""
    log = base64.b64decode(answer.get("log", ""))
    started_at = answer.get("started_at")
    return JobStatus(
        state=answer["state"],
        exit_code=answer["exit_code"],
        log=log,
        offset=offset,
        next_offset=offset + len(log),
        log_size=answer.get("log_size", 0),
        started_at=None if started_at is None else datetime.fromtimestamp(started_at, UTC),
        seconds=answer["seconds"],
        attached=answer.get("attached", False),
        cancelled=answer["cancelled"],
        isolation=answer["isolation"],
        reason=answer["reason"],
    )


class Jobs:
    """The jobs of one machine.

    Args:
        transport: The way to the machine.
        python: Its interpreter for job.py, 3.9 or newer.
        script_path: Where job.py is on the machine.
        root: The machine's directory; when it is gone, so is the machine.
    """

    def __init__(self, transport: Transport, python: str, script_path: str, root: str) -> None:
        self._transport = transport
        self._python = python
        self._script_path = script_path
        self._root = root

    def start(
        self, name: str, digest: str, script: str, env: Mapping[str, str], isolate: bool = True
    ) -> tuple[JobHandle, JobStatus]:
        """Start a bash script, or attach to the same job (same name and digest) that an earlier try started.

        Attaches to one that runs, and to one that has ended and was neither collected nor cancelled. One that
        was lost, and any other, makes way for a new generation. ``env`` travels on stdin and never touches
        the disk.

        Raises:
            MachineFault: The job could not be started: disk full, no interpreter, an earlier one unkillable.
            MachineLost: The machine's directory is gone.
            ConnectionLost: The machine was not reached; the job may have been started, so start it again.
        """
        request = {"name": name, "digest": digest, "script": script, "env": dict(env), "isolate": isolate}
        answer = self._ask("start", request, KILL_MARGIN_SECONDS)
        handle = JobHandle(name=name, generation=answer["generation"], digest=digest)
        return handle, parse_status(answer)

    def poll(
        self, handle: JobHandle, offset: int, limit: int = DEFAULT_LIMIT_BYTES, file: str = "log"
    ) -> JobStatus:
        """Return the state, and up to ``limit`` bytes from byte ``offset`` of the log or another file.

        A file is one in the job's own directory, and empty while it is not there.
        """
        return parse_status(self._ask("poll", build_poll_request(handle, offset, limit, file)), offset)

    def collect(self, handle: JobHandle) -> None:
        """Say that the result was consumed, so that the next start begins anew."""
        self._ask("collect", {"name": handle.name, "generation": handle.generation})

    def cancel(self, handle: JobHandle, grace_seconds: float = 10) -> Pids:
        """End everything that the job started and wait until it is gone; return the pids that are left."""
        answer = self._ask(
            "cancel", build_cancel_request(handle, grace_seconds), grace_seconds + KILL_MARGIN_SECONDS
        )
        return [int(pid) for pid in answer["left"]]

    def list(self) -> Entries:
        """Return every generation of every job that the machine knows."""
        return [
            JobEntry(
                handle=JobHandle(name=job["name"], generation=job["generation"], digest=job["digest"]),
                status=parse_status(job),
            )
            for job in self._ask("list", {})["jobs"]
        ]

    def _ask(self, verb: str, request: Mapping[str, Any], timeout_seconds: float = 60) -> dict[str, Any]:
        argv = build_command(self._python, self._script_path, verb, self._root)
        stdin = json.dumps(request).encode()
        return self._read_answer(
            argv, self._transport.run(argv, stdin=stdin, timeout_seconds=timeout_seconds)
        )

    def _read_answer(self, argv: Sequence[str], completed: Completed) -> dict[str, Any]:
        message = completed.stderr.decode(errors="replace").strip()[-2000:]
        if completed.exit_code == ROOT_IS_GONE:
            raise MachineLost(
                f"The machine is gone: {message}.",
                resource=self._root,
                next_step="Clear the stage: it makes a new machine.",
            )
        if completed.exit_code != 0:
            raise MachineFault(
                f"The machine could not do '{argv[4]}' (exit code {completed.exit_code}): {message}",
                resource=self._root,
                next_step=f"Look at the disk and at {self._python} on the machine, then clear the stage.",
            )
        try:
            answer = json.loads(completed.stdout)
        except ValueError as error:
            raise MachineFault(
                f"The machine answered '{argv[4]}' with something else than JSON: {completed.stdout[:200]!r}",
                resource=self._root,
                next_step=f"See what a login on the machine prints, and what {self._python} is.",
            ) from error
        return dict(answer)


def build_poll_request(handle: JobHandle, offset: int, limit: int, file: str = "log") -> dict[str, Any]:
    """Return the request of ``poll``."""
    return {
        "name": handle.name,
        "generation": handle.generation,
        "offset": offset,
        "limit": limit,
        "file": file,
    }


def build_cancel_request(handle: JobHandle, grace_seconds: float) -> dict[str, Any]:
    """Return the request of ``cancel``."""
    return {"name": handle.name, "generation": handle.generation, "grace_seconds": grace_seconds}
