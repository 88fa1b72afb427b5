"""The sensor beside ``train``: progress, and an end to a training that goes nowhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from finetune_airflow.operators.base import RecipeOperator
from finetune_airflow.triggers.training import TrainingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

TRAIN_TASK = "train"
ENDED_STATES = ("failed", "upstream_failed", "skipped", "removed")
# How long to wait for the task, or its next try, to follow the job whose end was seen.
PATIENCE_SECONDS = 10.0


class TrainingSensor(RecipeOperator):
    """Turns what the training's job writes into events and progress lines, deferred for as long as it runs.

    It succeeds with the training, fails when it had to end the training (no step for too long, loss not finite), and is
    skipped when the training failed by itself, which ``train`` reports.
    """

    def execute(self, context: Context) -> None:
        """Begin to watch."""
        self._watch(context, None)

    def complete(self, context: Context, event: dict[str, Any]) -> None:
        """Say what was seen, or go on watching."""
        if event["state"] in ("stalled", "diverged"):
            raise AirflowFailException(f"the training was ended: {event['detail']}")
        if event["state"] == "broken":
            raise AirflowFailException(f"the training goes on, but cannot be watched: {event['detail']}")
        state = self._read_train_state(context)
        if state in ENDED_STATES:
            raise AirflowSkipException(f"{TRAIN_TASK} is {state}; its log says why")
        if event["state"] == "ended" and state == "success":
            return
        self._watch(context, time.time() + PATIENCE_SECONDS)

    def _watch(self, context: Context, not_before: float | None) -> NoReturn:
        run_id = str(context["dag_run"].run_id)
        trigger = TrainingTrigger(self.recipe_path, run_id, self.read_params(context), not_before)
        self.defer(trigger=trigger, method_name="complete")

    def _read_train_state(self, context: Context) -> str | None:
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[TRAIN_TASK], run_ids=[ti.run_id])
        state: str | None = states.get(ti.run_id, {}).get(TRAIN_TASK)
        return state
