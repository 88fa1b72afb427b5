"""Kinds of machines by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.errors import RecipeError
from finetune.machines.base import MachineSpec
from finetune.machines.registry import get_provider
from finetune.settings import INCLUDE_DIR


def test_local_machines_live_below_the_home_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_HOME", str(tmp_path / "home"))
    record = get_provider("local").create(MachineSpec("tpu", "local"), {"recipe": "r", "run": "1"})
    assert Path(record.root).parent == tmp_path / "home" / "machines"


def test_an_unknown_kind_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"it has: .*local.*Did you mean 'local'"):
        get_provider("locl")


def test_a_provider_is_imported_only_when_it_is_asked_for() -> None:
    program = "import sys, finetune.machines.registry; print('finetune.machines.local' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(INCLUDE_DIR)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == b"False\n"
