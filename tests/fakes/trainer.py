"""A trainer that takes seconds: plants the stand-in where a run looks for its environments, and steers it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from finetune.plan import make_plan
from finetune.recipe import Recipe
from finetune.store.store import write_atomically
from finetune.trainers.artifacts import check_environment

FAKE_MAXTEXT = Path(__file__).with_name("fake_maxtext.py")


class FakeTrainer:
    """The stand-in trainer of everything that uses one control folder.

    Faults stay until they are mended: ``hold_at_step`` and ``step_seconds`` (of a training), ``nan_at_step``,
    ``exit_at_step``, ``end_early_at_step``, ``no_tokens``, ``heldout_loss`` (of the trained model), ``hold`` (names of
    commands) and ``fail`` (messages by command).
    """

    def __init__(self, control: Path) -> None:
        self.control = control
        control.mkdir(parents=True, exist_ok=True)

    def plant(self, recipe: Recipe) -> None:
        """Put the stand-in in the place of the environments that a recipe's runs would build."""
        plan = make_plan(recipe, "any")
        for environment in (
            plan.stage("install_trainer").outputs["environment"],
            str(check_environment(plan.layout).output),
        ):
            self.write_environment(Path(environment))

    def write_environment(self, folder: Path) -> None:
        """Make a folder that looks like a Python environment and holds the stand-in."""
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-I", "-S", str(FAKE_MAXTEXT), str(self.control)]
        python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        python.chmod(0o755)

    def set(self, **faults: Any) -> None:
        """Ask for faults, in the place of all earlier ones."""
        write_atomically(self.control / "faults.json", json.dumps(faults))

    def mend(self) -> None:
        """Let everything go on, and well."""
        self.set()

    def calls(self, command: str) -> list[dict[str, Any]]:
        """Return what is known of each start of a command, the first one first."""
        journal = self.control / "journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [call for call in map(json.loads, lines) if call["command"] == command]
