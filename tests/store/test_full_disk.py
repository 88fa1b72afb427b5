"""A full disk: what was kept stays, the error says what to do, and writing goes on once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from finetune.settings import INCLUDE_DIR

# Runs in a mount namespace of its own, where the store is a file system of 1 MiB.
PROGRAM = f"""
import json, sys
from datetime import UTC, datetime
from pathlib import Path
sys.path.insert(0, {str(INCLUDE_DIR)!r})
from finetune.errors import StoreError
from finetune.store import StageRecord, Store

root = Path(sys.argv[1])
store = Store(str(root))
run = store.run("small", "one")

def steps(first, last):
    return [{{"kind": "step", "step": number, "loss": 2.0}} for number in range(first, last + 1)]

def record(text):
    return StageRecord(stage="train", state="done", digest="", started_at=datetime.now(UTC), reason=text)

def refusal(write):
    try:
        write()
    except StoreError as error:
        return str(error)
    return "no error"

run.append_events(steps(1, 1))
run.write_stage(record("old"))
try:
    with (root / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
except OSError:
    pass
errors = [
    refusal(lambda: run.append_events(steps(2, 400))),
    refusal(lambda: run.append_log("train", 0, b"x" * 8192)),
    refusal(lambda: run.write_stage(record("x" * 8192))),
    refusal(store.check_writable),
]
(root / "filler").unlink()
kept = run.read_stage("train").reason
run.append_events(steps(2, 400))
told = [event["step"] for event in run.read_events()]
print(json.dumps({{"errors": errors, "kept": kept, "steps": told}}))
"""


def test_a_full_disk_is_said_and_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    become_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}' && exec \"$@\""
    argv = ["unshare", *become_root, "--mount", "sh", "-c", mount, "sh"]
    argv += [sys.executable, "-c", PROGRAM, str(tmp_path)]
    answer = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    for error in answer["errors"]:
        assert error.startswith(f"StoreError: {tmp_path}")
        assert "No space left on device" in error
        assert "Left behind: everything written before is intact" in error
        assert "Next: free disk space" in error
    assert answer["kept"] == "old"
    assert answer["steps"] == list(range(1, 401))
