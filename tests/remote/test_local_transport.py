"""Commands on this computer."""

from __future__ import annotations

from pathlib import Path

from finetune.remote.local import LocalTransport, select_login_environment
from finetune.remote.transport import Completed

ECHO = ["sh", "-c", "cat; echo oops >&2; exit 3"]


def test_a_command_gets_its_input_and_gives_its_output_and_exit_code() -> None:
    expected = Completed(3, "naïve".encode(), b"oops\n")
    assert LocalTransport().run(ECHO, stdin="naïve".encode()) == expected


def test_a_program_that_does_not_exist_is_127() -> None:
    completed = LocalTransport().run(["no-such-program"])
    assert completed.exit_code == 127
    assert b"no-such-program" in completed.stderr


def test_a_program_that_may_not_be_run_is_126(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    assert LocalTransport().run([str(program)]).exit_code == 126


def test_what_a_login_has_is_kept_and_everything_else_is_dropped() -> None:
    kept = {
        "HOME": "/h",
        "PATH": "/b",
        "LC_TIME": "C",
        "https_proxy": "p",
        "UV_INDEX_URL": "u",
        "PIP_CERT": "c",
    }
    dropped = {
        "HF_TOKEN": "t",
        "AIRFLOW_HOME": "a",
        "PYTHONPATH": "p",
        "UV_PUBLISH_TOKEN": "t",
        "VIRTUAL_ENV": "v",
        "FINETUNE_HOME": "f",
    }
    assert select_login_environment(kept | dropped) == kept
