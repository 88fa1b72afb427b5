"""A job sees no stranger: MaxText kills processes of others when it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from remote_machine import MARK, Machine, wait_for

# What MaxText's input pipeline does before it trains, with a line of log in the place of the signals.
LIST_STRANGERS = """
for directory in /proc/[0-9]*; do
  tr '\\0' ' ' < "$directory/cmdline" | grep -q 'multiprocessing[.]resource_tracker' || continue
  echo "found $(sed -n 's/^PPid:\\t//p' "$directory/status")"
done 2> /dev/null
"""


@pytest.fixture
def stranger(machine: Machine) -> psutil.Process:
    """An orphan that looks like another program's multiprocessing helper."""
    helper = "import time; time.sleep(1000)  # multiprocessing.resource_tracker"
    command = f"'{sys.executable}' -c '{helper}' > /dev/null 2>&1 & echo $!"
    shell = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=True, env={**os.environ, MARK: machine.mark}
    )
    pid = int(shell.stdout)
    stranger = psutil.Process(pid)
    wait_for(lambda: "multiprocessing.resource_tracker" in " ".join(stranger.cmdline()), "the stranger runs")
    assert stranger.ppid() == 1
    return stranger


def test_a_job_in_a_namespace_sees_nobody_else(machine: Machine, stranger: psutil.Process) -> None:
    handle, status = machine.jobs.start("train", "d", LIST_STRANGERS + "echo end", {})
    assert status.isolation in ("pid-namespace", "user-pid-namespace")
    assert machine.finish(handle).log == b"end\n"
    assert stranger.is_running()


def test_a_job_without_a_namespace_would_see_it_and_is_told_so(
    machine: Machine, stranger: psutil.Process
) -> None:
    script = LIST_STRANGERS + 'echo "$FINETUNE_JOB_ISOLATION"'
    handle, status = machine.jobs.start("train", "d", script, {}, isolate=False)
    assert status.isolation == "process-tree"
    lines = machine.finish(handle).log.splitlines()
    assert (b"found 1" in lines, lines[-1]) == (True, b"process-tree")


def test_a_machine_without_unshare_runs_jobs_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = machine.root / "bin"
    tools.mkdir()
    (tools / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tools))
    handle, status = machine.jobs.start("train", "d", "exit 3", {}, isolate=True)
    assert status.isolation == "process-tree"
    assert machine.finish(handle).exit_code == 3
