"""Wait for a stage's job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from finetune.errors import ConnectionLost, PipelineError
from finetune_airflow.triggers.base import RunTrigger

if TYPE_CHECKING:
    from finetune.stages.runner import StageRunner

# A connection that is lost for less than this is nobody's business: the job runs on without it.
CONNECTION_PATIENCE_SECONDS = 120.0


class JobTrigger(RunTrigger):
    """Fires when a stage's job has ended, is beyond reach, or has run for longer than its stage may.

    What the job prints goes to the task's log. When a user ends the task, the job is ended.

    Args:
        stage: The stage's name.
    """

    def __init__(
        self,
        recipe_path: str,
        run_id: str,
        params: Mapping[str, Any],
        stage: str,
        not_before: float | None = None,
    ) -> None:
        super().__init__(recipe_path, run_id, params, not_before)
        self.stage = stage

    def arguments(self) -> dict[str, Any]:
        """Return what the trigger is made anew from."""
        return super().arguments() | {"stage": self.stage}

    @cached_property
    def runner(self) -> StageRunner:
        """The stage's runner."""
        from finetune.stages.runner import StageRunner

        return StageRunner(self.loaded_run, self.stage)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the job again and again, and fire once."""
        state = await self._wait()
        await asyncio.sleep(max(0.0, self.not_before - time.time()))
        yield TriggerEvent({"state": state})

    async def _wait(self) -> str:
        """Return how the waiting ended; an error is found again, and told, by the task that resumes."""
        reached_at = time.monotonic()
        while True:
            try:
                polled = await asyncio.to_thread(self.runner.poll)
                reached_at = time.monotonic()
                for line in polled.fresh_log.splitlines():
                    self.log.info(line)
                if polled.ended:
                    return "ended"
                if await asyncio.to_thread(self.runner.seconds_over_limit) > 0:
                    return "timed_out"
            except ConnectionLost as error:
                self.log.warning("no connection, trying again: %s", error)
                if time.monotonic() - reached_at > CONNECTION_PATIENCE_SECONDS:
                    return "unreachable"
            except PipelineError as error:
                self.log.warning("%s", error)
                return "broken"
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """End the job: a user ended the task."""
        await asyncio.to_thread(self.runner.cancel, "a user ended the task")
