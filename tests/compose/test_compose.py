"""The compose file is valid, holds no secret, and its services agree on what they must share."""

from __future__ import annotations

import base64
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune import settings

ROOT = settings.PROJECT_ROOT
COMPOSE_FILE = ROOT / "docker-compose.yaml"
AIRFLOW_SERVICES = ("api-server", "dag-processor", "init", "scheduler", "triggerer")
SECRETS = (
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_API_SECRET_KEY",
    "AIRFLOW_FERNET_KEY",
    "AIRFLOW_JWT_SECRET",
    "POSTGRES_PASSWORD",
)


def compose_command() -> list[str]:
    """Return the command of whichever Compose there is: the plugin's, else the program's."""
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    ):
        return ["docker", "compose"]
    assert shutil.which("docker-compose"), "Compose is needed by the tests: apt-get install docker-compose"
    return ["docker-compose"]


def render(env_file: Path) -> subprocess.CompletedProcess[str]:
    """Let Compose check and render the file with the variables of ``env_file`` only."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    command = [*compose_command(), "--env-file", str(env_file), "-f", str(COMPOSE_FILE), "config"]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .env made by the script that people are told to run."""
    path = tmp_path_factory.mktemp("compose") / ".env"
    subprocess.run([str(ROOT / "scripts" / "make_env.sh"), str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def secrets(env_file: Path) -> dict[str, str]:
    lines = [line for line in env_file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def services(env_file: Path) -> dict[str, dict[str, Any]]:
    rendered = render(env_file)
    assert rendered.returncode == 0, rendered.stderr
    found: dict[str, dict[str, Any]] = yaml.safe_load(rendered.stdout)["services"]
    return found


def test_every_part_of_airflow_has_a_service(services) -> None:
    assert sorted(services) == sorted([*AIRFLOW_SERVICES, "postgres"])


def test_all_airflow_services_share_image_secrets_database_and_volumes(services, secrets) -> None:
    for name in AIRFLOW_SERVICES:
        environment = services[name]["environment"]
        assert services[name]["image"] == services["scheduler"]["image"]
        assert environment["AIRFLOW__API_AUTH__JWT_SECRET"] == secrets["AIRFLOW_JWT_SECRET"]
        assert environment["AIRFLOW__API__SECRET_KEY"] == secrets["AIRFLOW_API_SECRET_KEY"]
        assert environment["AIRFLOW__CORE__FERNET_KEY"] == secrets["AIRFLOW_FERNET_KEY"]
        assert secrets["POSTGRES_PASSWORD"] in environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
        assert services[name]["volumes"] == services["scheduler"]["volumes"]


def test_the_database_takes_the_password_that_airflow_gives(services, secrets) -> None:
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == secrets["POSTGRES_PASSWORD"]


def test_tasks_reach_the_api_by_the_name_of_its_service(services) -> None:
    url = services["scheduler"]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]

    assert url == "http://api-server:8080/execution/"


def test_airflow_starts_on_a_migrated_database(services) -> None:
    assert services["init"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["init"]["command"][-1].endswith("exec airflow db migrate")
    for name in set(AIRFLOW_SERVICES) - {"init"}:
        assert services[name]["depends_on"] == {"init": {"condition": "service_completed_successfully"}}
        assert services[name]["command"] == [name]


def test_every_service_that_stays_up_has_a_health_check(services) -> None:
    assert [name for name in services if "healthcheck" not in services[name]] == ["init"]


def test_the_ui_is_open_to_this_machine_only(services) -> None:
    (published,) = services["api-server"]["ports"]

    assert "127.0.0.1" in str(published)
    assert not [name for name in services if name != "api-server" and services[name].get("ports")]


@pytest.mark.parametrize("name", SECRETS)
def test_a_missing_secret_is_refused(name, secrets, tmp_path) -> None:
    partial = tmp_path / ".env"
    partial.write_text("".join(f"{key}={value}\n" for key, value in secrets.items() if key != name))

    refused = render(partial)

    assert refused.returncode != 0
    assert "run scripts/make_env.sh" in refused.stderr


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_has_a_default_in_the_file(name) -> None:
    uses = re.findall(r"\$\{" + name + r"[^}]*\}", COMPOSE_FILE.read_text())

    assert set(uses) == {f"${{{name}:?run scripts/make_env.sh}}"}


def test_secrets_are_random_and_private(env_file, secrets, tmp_path) -> None:
    another = tmp_path / ".env"
    subprocess.run([str(ROOT / "scripts" / "make_env.sh"), str(another)], check=True)

    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert len(base64.urlsafe_b64decode(secrets["AIRFLOW_FERNET_KEY"])) == 32
    for name in SECRETS:
        assert len(secrets[name]) >= 32
        assert secrets[name] not in another.read_text()


def test_an_existing_env_file_is_kept(env_file) -> None:
    before = env_file.read_text()

    subprocess.run([str(ROOT / "scripts" / "make_env.sh"), str(env_file)], check=True)

    assert env_file.read_text() == before


def test_the_image_installs_the_lock_that_make_setup_installs() -> None:
    image, makefile = (ROOT / "Dockerfile").read_text(), (ROOT / "Makefile").read_text()

    assert "scripts/setup.sh requirements.txt\n" in image
    assert "scripts/setup.sh requirements.txt\n" in makefile


def test_the_image_gets_no_local_state() -> None:
    allowed = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]

    assert (ROOT / ".dockerignore").read_text().startswith("*\n")
    assert sorted(allowed) == sorted(f"!{name}" for name in copied_names())


def copied_names() -> list[str]:
    """Return what the Dockerfile copies into the image."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    return [name.rstrip("/") for line in lines for name in line.split()[2:-1]]
