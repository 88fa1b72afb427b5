"""job.py is copied to machines: it needs nothing there but an old Python."""

from __future__ import annotations

import ast
import subprocess
import sys

from finetune.settings import ON_MACHINE_DIR
from on_machine import job

SOURCE = (ON_MACHINE_DIR / "job.py").read_text()


def test_it_is_python_3_9_and_imports_the_standard_library_only() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_process_named_with_brackets_is_read_right() -> None:
    fields = " ".join(["S", "7"] + [str(number) for number in range(5, 30)])
    process = job.parse_proc_stat(f"42 (a) b ( c)) {fields}", "boot")
    assert process == job.Process(pid=42, parent=7, state="S", started="boot/22")


def test_a_line_of_ps_is_read_right() -> None:
    process = job.parse_ps_line("   42     7 Ss   Mon Dec  1 01:26:37 2025")
    assert process == job.Process(pid=42, parent=7, state="S", started="Mon Dec  1 01:26:37 2025")


def test_a_wrong_command_line_or_request_is_exit_2_with_the_reason() -> None:
    def run(argv: list[str], stdin: bytes) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(ON_MACHINE_DIR / "job.py"), *argv],
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert done.stdout == b""
        return done.returncode, done.stderr.decode()

    assert run(["fly", "/"], b"{}")[0] == 2
    assert run(["poll", "/"], b"no json")[0] == 2
    code, message = run(["poll", "/"], b"{}")
    assert (code, "lacks 'name'" in message) == (2, True)
