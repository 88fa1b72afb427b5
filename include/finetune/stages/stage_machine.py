"""The machine that a stage runs on: the run's own, or one that the stage makes for itself and deletes."""

from __future__ import annotations

from dataclasses import dataclass

from finetune.machines.base import MachineProvider, MachineRecord, Role
from finetune.remote.jobs import Jobs
from finetune.stages.context import RunContext
from finetune.store import JobRef

# The label of a machine that a stage made for itself, and deletes: it outlives a try that was killed.
MADE_BY = "stage"


@dataclass(frozen=True)
class StageMachine:
    """Finds, makes and deletes the machine of one stage.

    Args:
        context: The run.
        stage: The stage's name.
        role: The role of the machine that it runs on.
    """

    context: RunContext
    stage: str
    role: Role

    @property
    def provider(self) -> MachineProvider:
        """The provider of the role's machine."""
        return self.context.provider(self.role)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the run's machine of this role."""
        return self.context.labels | {"role": self.role}

    def jobs(self, machine: MachineRecord) -> Jobs:
        """Return a machine's jobs."""
        return self.provider.jobs(machine)

    def ensure(self) -> tuple[MachineRecord, bool]:
        """Return the run's machine, made now unless there is one, and whether the stage has to delete it."""
        found = [machine for machine in self.provider.find(self.labels) if machine.incarnation]
        if found:
            return found[0], found[0].labels.get(MADE_BY) == self.stage
        spec = self.context.machine_spec(self.role)
        owned = self.labels | {"owner": self.context.recipe.owner, MADE_BY: self.stage}
        return self.provider.create(spec, owned), True

    def find(self, job: JobRef | None) -> MachineRecord | None:
        """Return the very machine that a job runs on; None where it is gone."""
        if job is None:
            return None
        machines = self.provider.find(self.labels)
        return next((machine for machine in machines if machine.incarnation == job.machine_incarnation), None)

    def release(self) -> None:
        """Delete the machine that the stage made for itself, in this try or in one that was killed."""
        for machine in self.provider.find(self.labels | {MADE_BY: self.stage}):
            self.provider.delete(machine)
