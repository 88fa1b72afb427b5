"""Setting up finds a Python 3.12 wherever it is, and installs exactly what is locked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from finetune import settings

ROOT = settings.PROJECT_ROOT
FIND_PYTHON = ROOT / "scripts" / "find_python.sh"
# What find_python.sh itself needs beside bash.
TOOLS = ("bash", "sort", "grep", "tr")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that is the whole PATH: the shell's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
    return folder


def add_program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def find_python(programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(programs), **variables}
    return subprocess.run([str(FIND_PYTHON)], env=environment, capture_output=True, text=True)


def real_python() -> Path:
    return Path(sys._base_executable).resolve()


def test_python_312_on_the_path_is_found(programs) -> None:
    (programs / "python3.12").symlink_to(real_python())

    assert find_python(programs).stdout.strip() == str(real_python())


def test_a_shim_that_does_not_run_makes_way_for_the_next_one_on_the_path(programs, tmp_path) -> None:
    add_program(programs, "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    second = tmp_path / "second"
    second.mkdir()
    (second / "python3.12").symlink_to(real_python())

    found = find_python(programs, PATH=f"{programs}:{second}")

    assert found.stdout.strip() == str(real_python())


def test_a_version_that_pyenv_has_but_has_not_selected_is_found(programs, tmp_path) -> None:
    prefix = tmp_path / "versions" / "3.12.9"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(real_python())
    add_program(programs, "python3.12", "exit 127")
    add_program(
        programs,
        "pyenv",
        f'case "$1" in versions) printf "  3.11.7\\n* 3.13.0\\n  3.12.9\\n  3.12.9/envs/mine\\n" ;; '
        f'prefix) [ "$2" = 3.12.9 ] && echo {prefix} ;; esac',
    )

    assert find_python(programs).stdout.strip() == str(real_python())


def test_a_python3_of_the_right_version_will_do(programs) -> None:
    (programs / "python3").symlink_to(real_python())

    assert find_python(programs).stdout.strip() == str(real_python())


def test_a_named_python_wins(programs, tmp_path) -> None:
    add_program(programs, "python3.12", "exit 127")
    named = tmp_path / "mine"
    named.symlink_to(real_python())

    assert find_python(programs, PYTHON=str(named)).stdout.strip() == str(real_python())


def test_without_python_312_it_says_what_was_tried_and_what_to_do(programs) -> None:
    add_program(programs, "python3.12", "exit 127")
    add_program(programs, "python3", "echo 3.11 venv /usr/bin/python3.11")

    found = find_python(programs)

    assert found.returncode == 1
    assert found.stdout == ""
    assert f"tried {programs}/python3.12: does not run" in found.stderr
    assert f"tried {programs}/python3: is Python 3.11" in found.stderr
    assert "Next: install Python 3.12" in found.stderr


def test_a_python_without_the_venv_module_is_told_as_such(programs) -> None:
    add_program(programs, "python3.12", "echo 3.12 bare /usr/bin/python3.12")

    found = find_python(programs)

    assert found.returncode == 1
    assert "has no venv module" in found.stderr
    assert "apt-get install python3.12-venv" in found.stderr


def read_lock(name: str) -> dict[str, str]:
    """Return the versions of a lock by package."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in lines}


def read_project() -> dict[str, list[str]]:
    """Return what pyproject.toml asks for, by lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        "requirements.txt": project["project"]["dependencies"],
        "requirements-dev.txt": project["dependency-groups"]["dev"],
    }


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_the_lock_satisfies_what_the_project_asks_for(name) -> None:
    locked = read_lock(name)

    for text in read_project()[name]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), text


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_locked_package_has_hashes_and_no_registry_is_named(name) -> None:
    text = (ROOT / name).read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())

    assert len(entries) == len(read_lock(name)) > 30
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "--index-url" not in text


def test_tests_run_on_the_versions_that_users_run() -> None:
    locked, dev = read_lock("requirements.txt"), read_lock("requirements-dev.txt")

    assert {name: locked[name] for name in dev.keys() & locked.keys()} == {
        name: dev[name] for name in dev.keys() & locked.keys()
    }


def test_setting_up_again_installs_nothing_and_leaves_the_locks_alone() -> None:
    locks = {name: (ROOT / name).read_bytes() for name in read_project()}
    stamps = [ROOT / ".venv" / "installed", ROOT / ".venv" / "installed-dev"]
    before = [stamp.stat().st_mtime_ns for stamp in stamps]

    done = subprocess.run(
        ["make", "setup-dev"], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ)
    )

    assert done.returncode == 0, done.stderr
    assert "Installing" not in done.stdout
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == before
    assert {name: (ROOT / name).read_bytes() for name in locks} == locks
