"""What the triggers of a run share: they come to it with plain data, and look at it in a thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.triggers.base import BaseTrigger

from finetune_airflow.run import load_run

if TYPE_CHECKING:
    from finetune.stages.context import RunContext

LOCAL_POLL_SECONDS = 2.0
REMOTE_POLL_SECONDS = 10.0


class RunTrigger(BaseTrigger):
    """A trigger of one run.

    Args:
        recipe_path: The recipe's file.
        run_id: The run's id.
        params: The run's values of the recipe's fields.
        not_before: Seconds since the epoch before which the trigger must not fire.
    """

    def __init__(
        self, recipe_path: str, run_id: str, params: Mapping[str, Any], not_before: float | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recipe_path = recipe_path
        self.run_id = run_id
        self.params = dict(params)
        self.not_before = time.time() + quiet_seconds() if not_before is None else not_before

    def arguments(self) -> dict[str, Any]:
        """Return what the trigger is made anew from."""
        return {
            "recipe_path": self.recipe_path,
            "run_id": self.run_id,
            "params": self.params,
            "not_before": self.not_before,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger's import path and arguments."""
        return f"{type(self).__module__}.{type(self).__name__}", self.arguments()

    @cached_property
    def loaded_run(self) -> RunContext:
        """The run."""
        return load_run(self.recipe_path, self.run_id, self.params)

    @property
    def poll_seconds(self) -> float:
        """Seconds from one look at the machine to the next."""
        local = self.loaded_run.recipe.machines.tpu.kind == "local"
        return LOCAL_POLL_SECONDS if local else REMOTE_POLL_SECONDS


def quiet_seconds() -> float:
    """Return for how long after its deferral no task may resume.

    One that resumes before its supervisor has noticed, at a heartbeat, that the deferring process ended is marked as
    failed: apache/airflow #71172, #72716.
    """
    return 2.0 * conf.getint("workers", "min_heartbeat_interval", fallback=5)
