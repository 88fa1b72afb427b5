"""Airflow on this machine: background processes that are started, found again and ended as one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel

from finetune import settings
from finetune.demo.airflow_config import ADMIN, AirflowConfig, Secrets, build_environment, write_private
from finetune.demo.api import AirflowApi
from finetune.demo.checks import choose_port
from finetune.demo.hostname import LOOPBACK
from finetune.demo.launch import COMPONENTS, AirflowStartFailed, Launcher, PortTaken
from finetune.demo.processes import Household, ProcessIdentity, proportional_memory_bytes
from finetune.errors import PipelineError

MARK_NAME = "FINETUNE_AIRFLOW_INSTANCE"
# Idle components end within 2 s, but a triggerer often waits 10 s in vain for its child that has ended already
# (the race of apache/airflow #71172): a second request makes it go at once. Whatever is left then is killed.
STOP_PATIENCE_SECONDS = 2.0
STOP_GRACE_SECONDS = 5.0
PORT_ATTEMPTS = 3
# The caller's variables that Airflow's processes read when they start and stay with.
INHERITED_SETTINGS = ("FINETUNE_STORE", "FINETUNE_RECIPES_DIR")


class AirflowRunsDifferently(PipelineError):
    """Airflow runs with other settings or older code, and is busy."""


class AirflowStopFailed(PipelineError):
    """Processes of this Airflow outlived being killed."""


class RunningAirflow(BaseModel, frozen=True):
    """What is on record of an Airflow that was started here."""

    instance: str
    port: int
    log_port: int
    fingerprint: str
    started_at: datetime
    components: list[ProcessIdentity] = []

    @property
    def base_url(self) -> str:
        """The UI's address."""
        return f"http://{LOOPBACK}:{self.port}"


class AirflowLocal:
    """One Airflow below one home folder; several homes run side by side.

    Args:
        home: The installation's state (``FINETUNE_HOME``); Airflow lives in its folder ``airflow``.
        dags: The folder of DAG files.
        plugins: The folder of plugins.
        env: Variables for Airflow's processes, beside the caller's own.
        database_url: The metadata database; None for SQLite.
        port: The preferred port of UI and API; a free one is taken when it is in use. 0 for any.

    Used as a context manager it starts and stops Airflow.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        dags: Path | None = None,
        plugins: Path | None = None,
        env: Mapping[str, str] | None = None,
        database_url: str | None = None,
        port: int = 0,
    ) -> None:
        self.home = (home or settings.home_dir()).absolute()
        self.airflow_home = self.home / "airflow"
        self.dags = (dags or settings.PROJECT_ROOT / "dags").absolute()
        self.plugins = (plugins or settings.PROJECT_ROOT / "plugins").absolute()
        self.env = dict(env or {})
        self.database_url = database_url
        self.preferred_port = port

    @classmethod
    def from_settings(cls) -> AirflowLocal:
        """Return the Airflow that the environment's settings describe."""
        return cls(database_url=settings.database_url(), port=settings.airflow_port())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What is known of it

    @cached_property
    def secrets(self) -> Secrets:
        """This Airflow's secrets, made when first needed."""
        self._make_home()
        return Secrets.load_or_make(self.airflow_home / "secrets.json")

    @property
    def running(self) -> RunningAirflow | None:
        """What is on record; None where nothing was started, or it was stopped."""
        path = self.airflow_home / "running.json"
        return RunningAirflow.model_validate_json(path.read_text()) if path.exists() else None

    @property
    def base_url(self) -> str:
        """The UI's address.

        Raises:
            PipelineError: It was not started.
        """
        running = self.running
        if running is None:
            raise PipelineError("Airflow is not running on this machine", next_step="make start")
        return running.base_url

    @property
    def username(self) -> str:
        """The administrator's name."""
        return ADMIN

    @cached_property
    def api(self) -> AirflowApi:
        """A client of the running Airflow, as its administrator."""
        return AirflowApi(self.base_url, self.username, self.secrets.admin_password)

    def component(self, name: str) -> psutil.Process | None:
        """Return a component's process (``scheduler``, ``triggerer``, ...); None where it does not run."""
        known = self.running.components if self.running else []
        return next((found for one in known if one.name == name and (found := one.find())), None)

    def missing_components(self) -> list[str]:
        """Return the names of the components that do not run."""
        return [name for name in COMPONENTS if self.component(name) is None]

    def processes(self) -> list[psutil.Process]:
        """Return every process that belongs to this Airflow, tasks and their children included."""
        running = self.running
        return self._household(running).members() if running else []

    def memory_bytes(self) -> int:
        """Return the memory of all its processes (PSS)."""
        return proportional_memory_bytes(self.processes())

    # Start and stop

    def start(self) -> bool:
        """Start Airflow and wait until it is healthy; True when it was started, False when it was up already.

        One that runs with other settings or older code is started anew, unless a run is going on there.

        Raises:
            AirflowStartFailed: A component ended, or not all were healthy in time; nothing is left running.
            AirflowRunsDifferently: It runs with other settings or older code, and is busy.
        """
        self._make_home()
        with self._locked():
            running = self.running
            if running and not self.missing_components():
                if running.fingerprint == self._fingerprint():
                    self._launcher(running).wait_until_healthy(running.components, running.started_at)
                    return False
                self._require_idle(running)
            self._end_all()
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    self._launch()
                    break
                except PortTaken:
                    if attempt == PORT_ATTEMPTS:
                        raise
            return True

    def stop(self) -> bool:
        """End every process of this Airflow; True when there was one.

        Raises:
            AirflowStopFailed: A process could not be ended.
        """
        if not self.airflow_home.exists():
            return False
        with self._locked():
            return self._end_all()

    def kill(self) -> None:
        """Kill every process of this Airflow at once, also while another command starts or stops it.

        Raises:
            AirflowStopFailed: A process could not be ended.
        """
        running = self.running
        if running:
            self._conclude(self._household(running).kill(STOP_GRACE_SECONDS))

    def _launch(self) -> None:
        running = RunningAirflow(
            instance=secrets.token_hex(8),
            port=choose_port(self.preferred_port),
            log_port=choose_port(0),
            fingerprint=self._fingerprint(),
            started_at=datetime.now(UTC),
        )
        launcher = self._launcher(running)
        launcher.config.write(self.secrets)
        # On record before the first process exists: whatever interrupts this, stop finds them by their mark.
        self._record(running)
        try:
            launcher.migrate_database()
            for name in COMPONENTS:
                known = [*running.components, launcher.spawn(name)]
                running = running.model_copy(update={"components": known})
                self._record(running)
            launcher.wait_until_healthy(running.components, running.started_at)
        except PipelineError:
            self._end_all()
            raise

    def _launcher(self, running: RunningAirflow) -> Launcher:
        config = AirflowConfig(
            home=self.airflow_home,
            dags=self.dags,
            plugins=self.plugins,
            database_url=self.database_url,
            port=running.port,
            log_port=running.log_port,
        )
        own = {"FINETUNE_HOME": str(self.home), MARK_NAME: running.instance}
        return Launcher(config, build_environment(config, os.environ, {**own, **self.env}))

    def _end_all(self) -> bool:
        running = self.running
        if running is None:
            return False
        self._conclude(self._household(running).end(STOP_PATIENCE_SECONDS, STOP_GRACE_SECONDS))
        return True

    def _conclude(self, survivors: list[psutil.Process]) -> None:
        if survivors:
            raise AirflowStopFailed(
                f"{len(survivors)} processes of Airflow could not be ended",
                left=f"processes {', '.join(str(process.pid) for process in survivors)}",
                next_step="end them by hand, then: make stop",
            )
        (self.airflow_home / "running.json").unlink(missing_ok=True)
        if "api" in self.__dict__:
            self.api.close()
            del self.api

    def _household(self, running: RunningAirflow) -> Household:
        return Household(running.components, self.airflow_home, {MARK_NAME: running.instance})

    # Its folder

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self.airflow_home.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AirflowStartFailed(
                f"the folder for Airflow's state cannot be made: {error}",
                resource=str(self.airflow_home),
                left="nothing was started",
                next_step="set FINETUNE_HOME to a folder that you can write in, then repeat the command",
            ) from error

    def _record(self, running: RunningAirflow) -> None:
        write_private(self.airflow_home / "running.json", running.model_dump_json(indent=2))

    def _fingerprint(self) -> str:
        """Return what tells this Airflow from one with other settings or other code."""
        inherited = {name: os.environ[name] for name in INHERITED_SETTINGS if name in os.environ}
        settings_of_processes = sorted({**inherited, **self.env}.items())
        told = repr((self.dags, self.plugins, self.database_url, settings_of_processes))
        digest = hashlib.sha256(told.encode())
        for folder in (settings.INCLUDE_DIR / "finetune", self.plugins):
            for path in sorted(folder.rglob("*.py")):
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _require_idle(self, running: RunningAirflow) -> None:
        active = self.api.dag_runs(states=("queued", "running"))
        if active:
            names = ", ".join(f"{run.dag_run_id} of {run.dag_id}" for run in active)
            raise AirflowRunsDifferently(
                "Airflow runs with other settings or older code than these, and cannot be started anew:"
                f" {names} is going on",
                resource=running.base_url,
                left="that Airflow, untouched",
                next_step="wait for the end of the run, or: make stop; then repeat the command",
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep two commands from starting or stopping the same Airflow at once."""
        with (self.airflow_home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
