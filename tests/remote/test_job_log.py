"""The log is read by byte offset: each byte once, and all of it."""

from __future__ import annotations

import pytest
from remote_machine import Machine

from finetune.errors import MachineFault
from finetune.remote.jobs import JobHandle

TEXT = "début — 训练 🙂 loss: 0.5\n"


def read_log(machine: Machine, handle: JobHandle, limit: int, offset: int = 0) -> bytes:
    """Read a log as a watcher does, piece by piece, until the job has ended and all is read."""
    log = b""
    while True:
        status = machine.jobs.poll(handle, offset, limit)
        assert status.offset == offset
        assert len(status.log) <= limit
        log += status.log
        offset = status.next_offset
        if status.state == "exited" and offset == status.log_size:
            return log


def test_pieces_that_cut_characters_in_half_add_up_to_the_log(machine: Machine) -> None:
    handle = machine.start(f"printf '%s' '{TEXT}'; printf '\\377\\000end' >&2")
    machine.finish(handle)
    log = read_log(machine, handle, limit=5)
    assert log == TEXT.encode() + b"\xff\x00end"
    assert log == (machine.directory(handle) / "log").read_bytes()


def test_a_log_that_grows_while_it_is_read_is_read_once(machine: Machine) -> None:
    handle = machine.start("seq 300; until [ -e go ]; do :; done; seq 3000")
    first = machine.jobs.poll(handle, 0, 7)
    (machine.directory(handle) / "go").touch()
    rest = read_log(machine, handle, 4096, first.next_offset)
    numbers = [*range(1, 301), *range(1, 3001)]
    assert (first.log + rest).split() == [str(number).encode() for number in numbers]


def test_beyond_the_end_there_is_nothing(machine: Machine) -> None:
    handle = machine.start("echo hello")
    machine.finish(handle)
    status = machine.jobs.poll(handle, 6)
    assert (status.log, status.next_offset, status.log_size) == (b"", 6, 6)


def test_another_file_of_the_job_is_read_the_same_way(machine: Machine) -> None:
    handle = machine.start("echo '{\"step\": 1}' > metrics.jsonl; echo in the log")
    machine.finish(handle)
    assert machine.jobs.poll(handle, 2, file="metrics.jsonl").log == b'step": 1}\n'
    assert machine.jobs.poll(handle, 0, file="not-there-yet").log == b""


@pytest.mark.parametrize("file", ["../1/log", "/etc/passwd", "..", ""])
def test_a_file_outside_the_job_is_refused(machine: Machine, file: str) -> None:
    handle = machine.start("exit 0")
    with pytest.raises(MachineFault, match="no name for a job's file"):
        machine.jobs.poll(handle, 0, file=file)
