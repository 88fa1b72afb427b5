"""The configuration of an Airflow on this machine: its airflow.cfg, its secrets and its environment."""

from __future__ import annotations

import base64
import configparser
import io
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from finetune import settings
from finetune.demo.hostname import LOOPBACK

ADMIN = "admin"
# Each idle worker of the LocalExecutor costs 17 MB; a run needs at most three tasks at once.
PARALLELISM = 8
# A new DAG file or recipe is seen after this time.
REFRESH_SECONDS = 10
# apache/airflow #71172: a deferred task that resumes before its supervisor has noticed the end of its process
# is marked as failed; the supervisor looks at every heartbeat.
HEARTBEAT_SECONDS = 1
# How long a writer waits for another one. With SQLite's own 5 s, a busy machine answers "database is locked".
SQLITE_TIMEOUT_SECONDS = 60
# Settings of another Airflow in the caller's environment would override airflow.cfg.
OVERRIDES_PREFIX = "AIRFLOW__"
DROPPED_NAMES = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV", "AIRFLOW_CONFIG"})


class Secrets(BaseModel, frozen=True):
    """What only this Airflow knows; made once and kept, so that logins and stored connections stay valid."""

    admin_password: str
    jwt_secret: str
    api_secret_key: str
    fernet_key: str

    @classmethod
    def make(cls) -> Secrets:
        """Return new random secrets."""
        return cls(
            admin_password=secrets.token_urlsafe(12),
            jwt_secret=secrets.token_urlsafe(64),
            api_secret_key=secrets.token_urlsafe(32),
            fernet_key=base64.urlsafe_b64encode(os.urandom(32)).decode(),
        )

    @classmethod
    def load_or_make(cls, path: Path) -> Secrets:
        """Read the secrets kept in a file of mode 0600, or make them and keep them there."""
        if path.exists():
            return cls.model_validate_json(path.read_text())
        made = cls.make()
        write_private(path, made.model_dump_json(indent=2))
        return made


@dataclass(frozen=True)
class AirflowConfig:
    """Where one Airflow lives and what it serves.

    Args:
        home: ``AIRFLOW_HOME``.
        dags: The folder of DAG files.
        plugins: The folder of plugins.
        database_url: SQLAlchemy URL of the metadata database; None for SQLite in ``home``.
        port: Of the API server, on the loopback address.
        log_port: Of the server of running tasks' logs.
    """

    home: Path
    dags: Path
    plugins: Path
    database_url: str | None
    port: int
    log_port: int

    @property
    def base_url(self) -> str:
        """The address of the UI."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def sqlite_path(self) -> Path | None:
        """The database file; None with another database."""
        return None if self.database_url else self.home / "airflow.db"

    @property
    def passwords_path(self) -> Path:
        """Where Airflow's simple auth manager looks for passwords."""
        return self.home / "passwords.json"

    def write(self, known: Secrets) -> None:
        """Write airflow.cfg and the password file, readable by their owner only."""
        write_private(self.home / "airflow.cfg", self.render(known))
        write_private(self.passwords_path, json.dumps({ADMIN: known.admin_password}))

    def render(self, known: Secrets) -> str:
        """Return the text of airflow.cfg."""
        parser = configparser.RawConfigParser()
        for section, options in self._options(known).items():
            # Airflow interpolates its values: a lone % would be an error.
            parser[section] = {name: str(value).replace("%", "%%") for name, value in options.items()}
        text = io.StringIO()
        parser.write(text)
        return text.getvalue()

    def _options(self, known: Secrets) -> dict[str, dict[str, object]]:
        return {
            "core": {
                "dags_folder": self.dags,
                "plugins_folder": self.plugins,
                "load_examples": False,
                "executor": "LocalExecutor",
                "parallelism": PARALLELISM,
                "fernet_key": known.fernet_key,
                "execution_api_server_url": f"{self.base_url}/execution/",
                "hostname_callable": "finetune.demo.hostname.loopback",
                "simple_auth_manager_users": f"{ADMIN}:admin",
                "simple_auth_manager_passwords_file": self.passwords_path,
            },
            "database": {
                "sql_alchemy_conn": normalise_database_url(self.database_url)
                if self.database_url
                else f"sqlite:///{self.sqlite_path}?timeout={SQLITE_TIMEOUT_SECONDS}",
            },
            "api": {
                "host": LOOPBACK,
                "port": self.port,
                "base_url": self.base_url,
                "secret_key": known.api_secret_key,
                "workers": 1,
            },
            "api_auth": {"jwt_secret": known.jwt_secret},
            "workers": {"min_heartbeat_interval": HEARTBEAT_SECONDS},
            "dag_processor": {
                "refresh_interval": REFRESH_SECONDS,
                "min_file_process_interval": REFRESH_SECONDS,
                "bundle_refresh_check_interval": HEARTBEAT_SECONDS,
            },
            # One server hands out the logs of tasks and triggers alike: they are in one folder.
            "logging": {
                "base_log_folder": self.home / "logs",
                "worker_log_server_port": self.log_port,
                "trigger_log_server_port": self.log_port,
            },
        }


def build_environment(
    config: AirflowConfig, base: Mapping[str, str], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of Airflow's processes: ``base`` without what would bend it, then ``extra``."""
    kept = {
        name: value
        for name, value in base.items()
        if not name.startswith(OVERRIDES_PREFIX) and name not in DROPPED_NAMES
    }
    bypass = ",".join(filter(None, [kept.get("NO_PROXY") or kept.get("no_proxy"), LOOPBACK, "localhost"]))
    return {
        **kept,
        "AIRFLOW_HOME": str(config.home),
        "PYTHONPATH": str(settings.INCLUDE_DIR),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
        "NO_PROXY": bypass,
        "no_proxy": bypass,
        **extra,
    }


def normalise_database_url(url: str) -> str:
    """Return the URL with the driver that Airflow uses for PostgreSQL; others unchanged."""
    scheme, separator, rest = url.partition("://")
    return (
        f"postgresql+psycopg2://{rest}" if scheme in ("postgres", "postgresql") else scheme + separator + rest
    )


def write_private(path: Path, text: str) -> None:
    """Replace a file with text that only its owner can read, at no moment otherwise."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.replace(path)
