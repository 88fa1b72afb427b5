"""What a stage gives its job at the start, and reads of it at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from finetune.plan import Stage
from finetune.remote.jobs import JobStatus


def read_whole_file(read: Callable[[int], JobStatus]) -> bytes:
    """Return all bytes of a file of a job's directory, read piece by piece."""
    content = b""
    while True:
        status = read(len(content))
        content += status.log
        if len(content) >= status.log_size:
            return content


def job_environment(stage: Stage) -> dict[str, str]:
    """Return the environment that a job is started with: where to find uv and Python, and the secrets that it needs."""
    from uv import find_uv_bin

    base = Path(sys.executable).resolve()
    environment = {
        "FINETUNE_PYTHON": str(base),
        "PATH": f"{Path(find_uv_bin()).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    for name in stage.secrets:
        if value := os.environ.get(name):
            environment[f"FINETUNE_SECRET_{name}"] = value
    return environment
