"""The client's side of the protocol, and what it says when the machine cannot."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from remote_machine import Machine

from finetune.errors import ConnectionLost, MachineFault, MachineLost
from finetune.remote.jobs import JobHandle, Jobs, build_command
from finetune.remote.local import LocalTransport
from finetune.remote.transport import Completed


class AnsweringTransport:
    """Answers every command with the same."""

    def __init__(self, completed: Completed) -> None:
        self._completed = completed

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 60) -> Completed:
        return self._completed


def test_a_command_line_is_interpreter_script_verb_and_root() -> None:
    assert build_command("python3", "/opt/job.py", "poll", "/srv/machine") == [
        "python3",
        "-I",
        "-S",
        "/opt/job.py",
        "poll",
        "/srv/machine",
    ]


def test_a_status_says_since_when_and_how_long(machine: Machine) -> None:
    before = datetime.now(UTC)
    status = machine.finish(machine.start("sleep 0.2"))
    assert status.started_at is not None
    assert before <= status.started_at <= datetime.now(UTC)
    assert status.seconds >= 0.2


def test_a_handle_survives_being_written_down() -> None:
    handle = JobHandle(name="train", generation=2, digest="d")
    assert JobHandle.model_validate_json(handle.model_dump_json()) == handle


def test_a_machine_whose_directory_is_gone_is_lost_and_not_made_again(machine: Machine) -> None:
    handle = machine.start("exit 0")
    machine.finish(handle)
    shutil.rmtree(machine.root)
    with pytest.raises(MachineLost, match="is gone"):
        machine.jobs.poll(handle, 0)
    with pytest.raises(MachineLost, match="is gone"):
        machine.start("exit 0")
    assert not machine.root.exists()


def test_a_machine_without_the_interpreter_is_at_fault(machine: Machine) -> None:
    jobs = Jobs(LocalTransport(), "/no/such/python3", machine.script_path, str(machine.root))
    with pytest.raises(MachineFault, match="/no/such/python3"):
        jobs.list()


@pytest.mark.parametrize("name", ["../other", "a/b", "", ".hidden", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(machine: Machine, name: str) -> None:
    with pytest.raises(MachineFault, match="no name for a job"):
        machine.start("exit 0", name=name)
    assert list(machine.root.iterdir()) == []


def test_a_login_that_prints_a_banner_is_named_as_the_cause() -> None:
    jobs = Jobs(AnsweringTransport(Completed(0, b"Welcome!\n{}", b"")), "python3", "job.py", "/srv")
    with pytest.raises(MachineFault, match="Welcome") as caught:
        jobs.list()
    assert "login" in str(caught.value.next_step)


def test_a_variable_that_no_program_can_have_is_an_error_and_not_a_lost_job(machine: Machine) -> None:
    with pytest.raises(MachineFault, match="did not start"):
        machine.jobs.start("train", "d", "exit 0", {"BAD": "a\0b"})


def test_a_command_that_does_not_answer_in_time_is_a_lost_connection_and_is_ended(machine: Machine) -> None:
    transport = LocalTransport({"FINETUNE_TEST_MARK": machine.mark})
    with pytest.raises(ConnectionLost, match=r"within 0\.2 s"):
        transport.run(["sleep", "1000"], timeout_seconds=0.2)
    assert machine.processes() == []
