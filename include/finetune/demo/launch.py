"""Start the components of an Airflow on this machine, and wait until they are healthy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from finetune.demo.airflow_config import AirflowConfig
from finetune.demo.api import AirflowApi, AirflowApiError
from finetune.demo.checks import describe_unhealthy, listens, tail
from finetune.demo.processes import ProcessIdentity
from finetune.errors import PipelineError

# The triggerer's logs are in the scheduler's folder: one server hands out both.
COMPONENTS: dict[str, list[str]] = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
# Measured on two cores: 9 s to healthy on the first start. Slow disks and busy machines get plenty.
START_TIMEOUT_SECONDS = 180.0
POLL_SECONDS = 0.2


class AirflowStartFailed(PipelineError):
    """Airflow on this machine did not become healthy."""


class PortTaken(PipelineError):
    """Somebody else took the port between choosing and using it."""


class Launcher:
    """Starts one Airflow's commands, each with its output in a file.

    Args:
        config: As written to airflow.cfg.
        environment: Of every command.
    """

    def __init__(self, config: AirflowConfig, environment: Mapping[str, str]) -> None:
        self.config = config
        self.environment = dict(environment)

    def migrate_database(self) -> None:
        """Make the tables of the metadata database, or bring them to this release.

        Raises:
            AirflowStartFailed: The database cannot be reached or is not usable.
        """
        marker, release = self.config.home / "migrated", version("apache-airflow-core")
        sqlite = self.config.sqlite_path
        if sqlite and sqlite.exists() and marker.exists() and marker.read_text() == release:
            return
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.config.home,
            env=self.environment,
            check=False,
        )
        if done.returncode:
            raise AirflowStartFailed(
                f"the metadata database could not be prepared:\n{tail(done.stdout)}",
                resource=str(sqlite) if sqlite else "the database of FINETUNE_DATABASE_URL",
                left="nothing runs",
                next_step="check that the database is up and its URL right, then repeat the command",
            )
        if sqlite:
            sqlite.chmod(0o600)
            marker.write_text(release)

    def spawn(self, name: str) -> ProcessIdentity:
        """Start a component in a session of its own, its output in a file that replaces the last one."""
        log = component_log(self.config.home, name)
        log.parent.mkdir(exist_ok=True)
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMPONENTS[name]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.config.home,
                env=self.environment,
                start_new_session=True,
            )
        return ProcessIdentity.of(name, process.pid)

    def wait_until_healthy(self, components: Sequence[ProcessIdentity], since: datetime) -> None:
        """Wait until every part reports to be healthy, with a sign of life since then.

        Raises:
            AirflowStartFailed: A component ended, or it took too long.
            PortTaken: Another program has the port.
        """
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        unhealthy = "the API server does not answer"
        with AirflowApi(self.config.base_url, "", "") as api:
            while time.monotonic() < deadline:
                self._check_alive(components)
                # Whoever else answers on this port is not asked.
                if listens(components, "api-server", self.config.port):
                    with contextlib.suppress(AirflowApiError):
                        unhealthy = describe_unhealthy(api.health(), since)
                        if not unhealthy:
                            return
                time.sleep(POLL_SECONDS)
        raise self._describe_failure(
            f"Airflow was not healthy after {START_TIMEOUT_SECONDS:g} s: {unhealthy}", COMPONENTS
        )

    def _check_alive(self, components: Iterable[ProcessIdentity]) -> None:
        ended = [one.name for one in components if not one.find()]
        if not ended:
            return
        failure = self._describe_failure(f"Airflow's {' and '.join(ended)} ended while starting", ended)
        if "api-server" in ended and "address already in use" in failure.cause.lower():
            raise PortTaken(failure.cause, resource=self.config.base_url, left=failure.left)
        raise failure

    def _describe_failure(self, what: str, names: Iterable[str]) -> AirflowStartFailed:
        logs = [log for name in names if (log := component_log(self.config.home, name)).exists()]
        tails = "\n".join(f"--- {log}\n{tail(log.read_text(errors='replace'))}" for log in logs)
        return AirflowStartFailed(
            f"{what}\n{tails}",
            resource=str(self.config.home),
            left="nothing: what had started was ended",
            next_step="mend what the log says, then repeat the command",
        )


def component_log(airflow_home: Path, name: str) -> Path:
    """Return the path of a component's output."""
    return airflow_home / "components" / f"{name}.log"
