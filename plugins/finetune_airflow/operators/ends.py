"""The tasks around the stages: checks and machines before, deletion and verdict after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finetune_airflow.operators.base import RecipeOperator
from finetune_airflow.run import explained

if TYPE_CHECKING:
    from airflow.sdk import Context


class PreflightOperator(RecipeOperator):
    """Checks everything that can be known before a machine is created."""

    def read_params(self, context: Context) -> dict[str, Any]:
        """Return the run's values, those of unknown names too: Airflow itself takes any key of a trigger's conf."""
        return {**(context["dag_run"].conf or {}), **super().read_params(context)}

    def execute(self, context: Context) -> str:
        """Run the checks; returns the path of the run's record."""
        from finetune.stages.preflight import run_preflight

        with explained():
            run = self.load_run(context)
            run_preflight(run)
            return str(run.store.run_json)


class CreateMachineOperator(RecipeOperator):
    """Makes the run's machines, or finds those that it has."""

    def execute(self, context: Context) -> None:
        """Make the machines."""
        from finetune.stages.teardown import create_machines

        with explained():
            record = create_machines(self.load_run(context))
            self.log.info("machines: %s", record.evidence["machines"])


class DeleteMachineOperator(RecipeOperator):
    """Deletes the run's machines with whatever runs on them; nothing to delete is success."""

    def execute(self, context: Context) -> None:
        """Delete the machines."""
        from finetune.stages.teardown import delete_machines

        with explained():
            record = delete_machines(self.load_run(context))
            self.log.info("deleted: %s", record.evidence["deleted"] or "nothing, all was gone")


class VerdictOperator(RecipeOperator):
    """Fails the run unless every other task succeeded, and proves that nothing of the run is left."""

    def execute(self, context: Context) -> None:
        """Give the verdict."""
        from finetune.stages.teardown import give_verdict

        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id])[ti.run_id]
        others = {task: states.get(task) for task in self.dag.task_ids if task != self.task_id}
        with explained():
            record = give_verdict(self.load_run(context), others)
            self.log.info("every task succeeded; left over and deleted now: %s", record.evidence["deleted"])
