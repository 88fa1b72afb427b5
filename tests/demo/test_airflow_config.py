"""What an Airflow on this machine is told, and who can read it."""

from __future__ import annotations

import configparser
import json
import os
import stat
from pathlib import Path

from finetune.demo.airflow_config import AirflowConfig, Secrets, build_environment, normalise_database_url


def make_config(home: Path, database_url: str | None = None) -> AirflowConfig:
    return AirflowConfig(home, home / "dags", home / "plugins", database_url, port=8123, log_port=8124)


def read(config: AirflowConfig) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(config.home / "airflow.cfg")
    return parser


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_made_once_and_only_their_owner_reads_them(tmp_path) -> None:
    path = tmp_path / "secrets.json"
    old = os.umask(0)
    try:
        made = Secrets.load_or_make(path)
    finally:
        os.umask(old)

    assert mode(path) == 0o600
    assert Secrets.load_or_make(path) == made
    assert Secrets.make() != made


def test_files_with_secrets_are_private(tmp_path) -> None:
    old = os.umask(0)
    try:
        make_config(tmp_path).write(Secrets.make())
    finally:
        os.umask(old)

    assert [mode(path) for path in sorted(tmp_path.iterdir())] == [0o600, 0o600]


def test_the_administrator_logs_in_with_the_password_of_the_secrets(tmp_path) -> None:
    config, known = make_config(tmp_path), Secrets.make()

    config.write(known)

    file = read(config).get("core", "simple_auth_manager_passwords_file")
    assert json.loads(Path(file).read_text()) == {"admin": known.admin_password}


def test_tasks_reach_the_api_at_the_chosen_port(tmp_path) -> None:
    config = make_config(tmp_path)

    config.write(Secrets.make())

    assert read(config).get("core", "execution_api_server_url") == "http://127.0.0.1:8123/execution/"
    assert read(config).get("api", "base_url") == "http://127.0.0.1:8123"


def test_sqlite_is_the_default_database(tmp_path) -> None:
    config = make_config(tmp_path)

    config.write(Secrets.make())

    assert read(config).get("database", "sql_alchemy_conn") == f"sqlite:///{tmp_path}/airflow.db?timeout=60"


def test_a_password_with_percent_signs_survives_the_configuration_file(tmp_path) -> None:
    config = make_config(tmp_path, "postgres://me:p%40ss@host/db")

    config.write(Secrets.make())

    assert read(config).get("database", "sql_alchemy_conn") == "postgresql+psycopg2://me:p%40ss@host/db"


def test_a_named_driver_is_kept() -> None:
    assert normalise_database_url("postgresql+psycopg://host/db") == "postgresql+psycopg://host/db"


def test_another_airflows_settings_in_the_environment_have_no_say(tmp_path) -> None:
    base = {
        "AIRFLOW__CORE__DAGS_FOLDER": "/another",
        "AIRFLOW_HOME": "/another",
        "AIRFLOW_CONFIG": "/another/airflow.cfg",
        "AIRFLOW_CONN_MINE": "kept",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HTTP_PROXY": "http://proxy",
        "NO_PROXY": "example.org",
    }

    environment = build_environment(make_config(tmp_path), base, {"AIRFLOW__CORE__PARALLELISM": "2"})

    assert environment["AIRFLOW_HOME"] == str(tmp_path)
    assert environment["AIRFLOW_CONN_MINE"] == "kept"
    assert environment["AIRFLOW__CORE__PARALLELISM"] == "2"
    assert environment["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    dropped = {"AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW_CONFIG", "PYTHONDONTWRITEBYTECODE"}
    assert not dropped & environment.keys()
