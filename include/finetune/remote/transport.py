"""What a way to reach a machine must offer: run one short command there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Completed:
    """A command that has ended; 126 and 127 as exit codes mean what they mean to a shell."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs short commands on one machine; anything long is a job (``jobs.py``)."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 60) -> Completed:
        """Run a command to its end.

        Raises:
            ConnectionLost: The machine was not reached, or did not answer in time.
        """
        ...
