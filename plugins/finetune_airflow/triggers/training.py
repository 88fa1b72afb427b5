"""Watch a training while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from finetune.errors import ConnectionLost, PipelineError
from finetune_airflow.triggers.base import RunTrigger

# How long to wait for a job to look at before asking Airflow what became of the task that should have started it.
WAITING_SECONDS = 60.0


class TrainingTrigger(RunTrigger):
    """Fires when the training has ended, was ended for going nowhere, or has no job to look at.

    The end of a job is told no sooner than it may be: until then another one may take its place, and is watched.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the training again and again, and fire once."""
        event = await self._watch()
        await asyncio.sleep(max(0.0, self.not_before - time.time()))
        yield TriggerEvent(event)

    async def _watch(self) -> dict[str, Any]:
        from finetune.stages.watch import TrainingMonitor

        monitor = TrainingMonitor(self.loaded_run)
        seen_at = time.monotonic()
        while True:
            try:
                watched = await asyncio.to_thread(monitor.look)
                for line in watched.lines:
                    self.log.info(line)
                if watched.state in ("stalled", "diverged"):
                    return {"state": watched.state, "detail": watched.detail}
                if watched.state == "ended" and time.time() >= self.not_before:
                    return {"state": watched.state, "detail": watched.detail}
                if watched.state != "waiting":
                    seen_at = time.monotonic()
            except ConnectionLost as error:
                self.log.warning("no connection, trying again: %s", error)
            except PipelineError as error:
                return {"state": "broken", "detail": str(error)}
            if time.monotonic() - seen_at > WAITING_SECONDS:
                return {"state": "waiting", "detail": "no job to look at"}
            await asyncio.sleep(self.poll_seconds)
