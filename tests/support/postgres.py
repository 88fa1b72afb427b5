"""A PostgreSQL of the tests' own: a throw-away cluster on a free port of the loopback address."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg

from finetune.demo.checks import choose_port
from finetune.demo.hostname import LOOPBACK

# Debian keeps the server's programs off PATH, in a folder for each version.
DEBIAN_PROGRAMS = "/usr/lib/postgresql"
USER = "finetune"


def find_program(name: str) -> str:
    """Return the path of one of PostgreSQL's server programs, the newest version's."""
    versions = sorted(Path(DEBIAN_PROGRAMS).glob("[0-9]*"), key=lambda folder: int(folder.name), reverse=True)
    folders = [str(version / "bin") for version in versions]
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]))
    assert found, f"{name} of PostgreSQL is needed by the tests: apt-get install postgresql"
    return found


@contextlib.contextmanager
def run_postgres() -> Iterator[str]:
    """Run a server and yield the URL of an empty database; its password needs quoting in a URL, as many do."""
    user = unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="finetune-postgres-"))
    password = f"{secrets.token_urlsafe(8)}@%/"
    port = choose_port(0)
    try:
        password_file = folder / "password"
        password_file.write_text(password)
        shutil.chown(folder, user)
        shutil.chown(password_file, user)
        data = folder / "data"
        run_as(
            user, "initdb", "-D", str(data), "-U", USER, "-A", "scram-sha-256", f"--pwfile={password_file}"
        )
        options = f"-c listen_addresses={LOOPBACK} -c port={port} -c unix_socket_directories= -c fsync=off"
        log = str(folder / "log")
        run_as(user, "pg_ctl", "-D", str(data), "-w", "-t", "60", "-l", log, "-o", options, "start")
        try:
            url = f"postgresql://{USER}:{quote(password, safe='')}@{LOOPBACK}:{port}"
            with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
                connection.execute("create database airflow")
            yield f"{url}/airflow"
        finally:
            run_as(user, "pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def run_as(user: str, program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL as a user."""
    change = (
        {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    done = subprocess.run(
        [find_program(program), *arguments],
        cwd="/",
        stdin=subprocess.DEVNULL,
        # pg_ctl's server keeps its output open: a pipe would never end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **change,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{program} {' '.join(arguments)} ended with {done.returncode}"


def unprivileged_user() -> str:
    """Return a user that PostgreSQL consents to run as: it refuses root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
