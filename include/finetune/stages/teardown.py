"""The two ends of a run: making its machines, and proving that nothing of it is left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from finetune.errors import MachineFault, PipelineError, StageFailed
from finetune.machines.base import Role
from finetune.stages.context import RunContext
from finetune.store import StageRecord


def create_machines(context: RunContext) -> StageRecord:
    """Make the run's machines, or find those that it has."""
    started_at = datetime.now(UTC)
    made = []
    for role in context.roles:
        labels = context.labels | {"role": role, "owner": context.recipe.owner}
        made.append(context.provider(role).create(context.machine_spec(role), labels))
    evidence = {
        "machines": [{"name": machine.name, "kind": machine.kind, "role": machine.role} for machine in made]
    }
    return _record(context, "create_machine", started_at, evidence)


def delete_machines(context: RunContext, roles: tuple[Role, ...] | None = None) -> StageRecord:
    """Delete the run's machines, with whatever runs on them."""
    started_at = datetime.now(UTC)
    deleted = _delete(context, roles or context.roles)
    return _record(context, "delete_machine", started_at, {"deleted": deleted})


def prove_nothing_left(context: RunContext) -> list[str]:
    """Delete what stages left of their own machines, and prove that nothing of the run is left.

    Returns:
        What had to be deleted.

    Raises:
        MachineFault: Something is still there.
    """
    deleted = _delete(context, ("tpu", "cpu", "worker"))
    left = [
        item for role in ("tpu", "cpu", "worker") for item in context.provider(role).leftovers(context.labels)
    ]
    if left:
        raise MachineFault(
            f"{len(left)} things of this run are still there after deletion: {'; '.join(sorted(set(left)))}",
            stage="verdict",
            left="; ".join(sorted(set(left))),
            next_step="clear the task delete_machine; if it fails again, end them by hand",
        )
    return deleted


def give_verdict(context: RunContext, states: Mapping[str, str | None]) -> StageRecord:
    """Prove that nothing is left, and that every task of the run succeeded.

    Args:
        context: The run.
        states: The state of every other task, by task id.

    Raises:
        StageFailed: A task did not succeed.
    """
    started_at = datetime.now(UTC)
    deleted = prove_nothing_left(context)
    failed = {task: state for task, state in states.items() if state != "success"}
    if failed:
        listed = ", ".join(f"{task} is {state or 'not run'}" for task, state in sorted(failed.items()))
        error = StageFailed(
            f"the run is not complete: {listed}",
            stage="verdict",
            left=f"no machine; records and models are in {context.store.root}",
            next_step="open the task that failed, mend its cause, and clear that task",
        )
        _record(context, "verdict", started_at, {"deleted": deleted}, error)
        raise error
    return _record(context, "verdict", started_at, {"deleted": deleted})


def _delete(context: RunContext, roles: tuple[Role, ...]) -> list[str]:
    deleted = []
    for role in roles:
        provider = context.provider(role)
        for machine in provider.find(context.labels | {"role": role}):
            deleted += provider.delete(machine).deleted
    return deleted


def _record(
    context: RunContext,
    stage: str,
    started_at: datetime,
    evidence: dict[str, Any],
    error: PipelineError | None = None,
) -> StageRecord:
    ended_at = datetime.now(UTC)
    record = StageRecord(
        stage=stage,
        state="failed" if error else "done",
        digest="",
        started_at=started_at,
        ended_at=ended_at,
        seconds=(ended_at - started_at).total_seconds(),
        evidence=evidence,
        error=str(error) if error else None,
        error_class=type(error).__name__ if error else None,
    )
    context.store.write_stage(record)
    return record
