"""A full disk: the exit code is recorded all the same, and a start says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from finetune.settings import INCLUDE_DIR, ON_MACHINE_DIR

# Runs in a mount namespace of its own, where the machine's directory is a file system of 256 KiB.
PROGRAM = f"""
import json, sys, time
sys.path.insert(0, {str(INCLUDE_DIR)!r})
from finetune.errors import MachineFault
from finetune.remote.jobs import Jobs
from finetune.remote.local import LocalTransport

jobs = Jobs(LocalTransport(), sys.executable, {str(ON_MACHINE_DIR / "job.py")!r}, sys.argv[1])
handle, status = jobs.start("fill", "d", "cat /dev/zero > ../../../filling; exit 5", {{}}, isolate=False)
deadline = time.monotonic() + 30
while status.state == "running" and time.monotonic() < deadline:
    status = jobs.poll(handle, 0)
try:
    jobs.start("next", "d", "exit 0", {{}}, isolate=False)
    refusal = None
except MachineFault as error:
    refusal = str(error)
print(json.dumps({{"state": status.state, "exit_code": status.exit_code, "refusal": refusal}}))
"""


def test_the_exit_code_of_a_job_that_filled_the_disk_is_recorded_and_the_next_start_names_the_cause(
    tmp_path: Path,
) -> None:
    become_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = f"mount -t tmpfs -o size=256k tmpfs '{tmp_path}' && exec \"$@\""
    argv = ["unshare", *become_root, "--mount", "sh", "-c", mount, "sh"]
    argv += [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    answer = json.loads(done.stdout)
    assert (answer["state"], answer["exit_code"]) == ("exited", 5)
    assert "No space left on device" in answer["refusal"]
