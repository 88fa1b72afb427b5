"""Reach this very machine: commands run as subprocesses, in the environment that a login would give them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from finetune.errors import ConnectionLost
from finetune.remote.transport import Completed

NOT_EXECUTABLE, NO_SUCH_PROGRAM = 126, 127  # as a shell says it

# What a login shell has. The scheduler's own variables (database, connections, Fernet key, tokens,
# PYTHONPATH) must not reach a trainer, which writes some of what it finds into its logs.
LOGIN_VARIABLE = re.compile(
    r"HOME|PATH|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|TMPDIR|LD_LIBRARY_PATH|REQUESTS_CA_BUNDLE"
    r"|CURL_CA_BUNDLE|(?i:(https?|all|no)_proxy)|(LC|XDG|SSL_CERT|UV|PIP)_.+"
)
SECRET_VARIABLE = re.compile(r".*_(TOKEN|PASSWORD|SECRET)")


def select_login_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a login on this machine would have, without secrets."""
    return {
        name: value
        for name, value in environ.items()
        if LOGIN_VARIABLE.fullmatch(name) and not SECRET_VARIABLE.fullmatch(name)
    }


class LocalTransport:
    """Runs commands on this machine.

    Args:
        environment: Variables that every command and everything it starts carries, beside a login's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 60) -> Completed:
        """Run a command to its end.

        Raises:
            ConnectionLost: It could not be started for want of memory or processes, or took too long.
        """
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                env=self._build_environment(),
                timeout=timeout_seconds,
                check=False,
            )
        except FileNotFoundError as error:
            return Completed(NO_SUCH_PROGRAM, b"", str(error).encode())
        except PermissionError as error:
            return Completed(NOT_EXECUTABLE, b"", str(error).encode())
        except (OSError, subprocess.TimeoutExpired) as error:
            raise describe_lost_connection(argv, timeout_seconds, error) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def _build_environment(self) -> dict[str, str]:
        return {**select_login_environment(os.environ), **self._environment}


def describe_lost_connection(
    argv: Sequence[str], timeout_seconds: float, error: BaseException
) -> ConnectionLost:
    """Return the error for a command that could not be run to its end."""
    late = isinstance(error, subprocess.TimeoutExpired)
    why = f"it did not answer within {timeout_seconds:g} s" if late else str(error)
    return ConnectionLost(
        f"This machine could not run a command ({argv[0]}): {why}.",
        left="Jobs that were started keep running.",
        next_step="Nothing, if it happens once; else look at the machine's load and memory.",
    )
