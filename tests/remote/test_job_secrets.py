"""A secret reaches the job, and nothing else."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from remote_machine import Machine, read_command_line

from finetune.remote.jobs import Jobs
from finetune.remote.local import LocalTransport
from finetune.remote.transport import Completed

SCRIPT = """
printf %s "$TOKEN" | sha256sum
echo ready > "$ROOT/ready"
until [ -e "$ROOT/release" ]; do sleep 0.05; done
"""


def find_in_files(root: Path, secret: str) -> list[Path]:
    """Return the files below a directory that contain a secret."""
    return [path for path in root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def find_in_command_lines(secret: str) -> list[psutil.Process]:
    """Return the processes of this computer whose command line contains a secret."""
    return [p for p in psutil.process_iter() if secret in " ".join(read_command_line(p))]


class RecordingTransport(LocalTransport):
    """Remembers every command line."""

    def __init__(self) -> None:
        super().__init__()
        self.argvs: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 60) -> Completed:
        self.argvs.append(argv)
        return super().run(argv, stdin=stdin, timeout_seconds=timeout_seconds)


def test_a_secret_is_in_no_file_and_no_command_line_while_the_job_runs_and_after(
    machine: Machine, isolate: bool
) -> None:
    secret = secrets.token_hex(16)
    env = {"TOKEN": secret, "ROOT": str(machine.root)}
    handle, _ = machine.jobs.start("train", "d", SCRIPT, env, isolate)
    machine.wait_for_file("ready")

    assert find_in_files(machine.root, secret) == []
    assert find_in_command_lines(secret) == []
    assert not (machine.directory(handle) / "env").exists()

    (machine.root / "release").touch()
    status = machine.finish(handle)
    assert status.log.decode().split()[0] == hashlib.sha256(secret.encode()).hexdigest()
    assert find_in_files(machine.root, secret) == []


def test_a_secret_is_in_no_command_that_the_transport_is_given(machine: Machine) -> None:
    transport = RecordingTransport()
    jobs = Jobs(transport, "python3", machine.script_path, str(machine.root))
    secret = secrets.token_hex(16)
    handle, _ = jobs.start("train", "d", "exit 0", {"TOKEN": secret})
    machine.finish(handle)
    jobs.poll(handle, 0)
    assert len(transport.argvs) == 2
    assert secret not in str(transport.argvs)


def test_the_schedulers_own_secrets_do_not_reach_a_job(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "HF_TOKEN",
        "AIRFLOW_CONN_HUB",
        "AIRFLOW__CORE__FERNET_KEY",
        "PYTHONPATH",
        "UV_PUBLISH_TOKEN",
    ):
        monkeypatch.setenv(name, "must-not-be-seen")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    log = machine.finish(machine.start("env")).log.decode()
    assert "must-not-be-seen" not in log
    assert {"HOME", "PATH", "LC_ALL"} <= {line.partition("=")[0] for line in log.splitlines()}


def test_this_test_would_see_a_secret_in_a_command_line() -> None:
    secret = secrets.token_hex(16)
    with subprocess.Popen(["sh", "-c", f"read -r x; : {secret}"], stdin=subprocess.PIPE) as process:
        assert [found.pid for found in find_in_command_lines(secret)] == [process.pid]
