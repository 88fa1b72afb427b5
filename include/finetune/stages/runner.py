"""How a stage runs: look in the store, find or make a machine, start or re-attach to the job, prove, record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finetune.errors import ConnectionLost, JobLost, MachineLost, PipelineError, StageFailed, StageTimeout
from finetune.machines.base import MachineRecord
from finetune.plan import Stage
from finetune.remote.jobs import JobHandle, JobStatus
from finetune.stages.context import RunContext
from finetune.stages.evidence import Proof, find_verdict, keep_training_events, prove
from finetune.stages.job_io import job_environment, read_whole_file
from finetune.stages.stage_machine import StageMachine
from finetune.store import JobRef, StageRecord

CANCEL_GRACE_SECONDS = 5.0
KILLED_EXIT_CODES = (128 + 9, 128 + 15)


@dataclass(frozen=True)
class Polled:
    """What one look at a job brought.

    Args:
        state: The job's state.
        fresh_log: Output that nobody has seen before.
        ended: Whether the job is over and all its output is kept.
    """

    state: str
    fresh_log: str
    ended: bool


class StageRunner:
    """Runs one stage of one run; every method can be called by another process than the one before it.

    Args:
        context: The run.
        name: The stage's name.
    """

    def __init__(self, context: RunContext, name: str) -> None:
        self.context = context
        self.stage: Stage = context.plan.stage(name)
        self.machine = StageMachine(context, name, context.machine_role(self.stage.role))

    @property
    def record_uri(self) -> str:
        """Where the stage's record is."""
        return str(self.context.store.stage_path(self.stage.name))

    def begin(self) -> StageRecord:
        """Start the stage's job, or take up the one that an earlier try started.

        Returns:
            The stage's record: ``running`` with its job, or ``done``/``reused`` when nothing needs to be run.

        Raises:
            PipelineError: An input is missing, or no machine or job could be had.
        """
        known = self.context.store.read_stage(self.stage.name)
        if reused := self._find_result(known):
            self.machine.release()
            return reused
        self._require_inputs()
        started_at = datetime.now(UTC)
        machine, made = self.machine.ensure()
        try:
            handle, status = self.machine.jobs(machine).start(
                self.stage.name, self.stage.digest, self.stage.script, job_environment(self.stage)
            )
        except PipelineError:
            self.machine.release()
            raise
        record = StageRecord(
            stage=self.stage.name,
            state="running",
            digest=self.stage.digest,
            started_at=known.started_at
            if known and known.state == "running" and status.attached
            else started_at,
            job=JobRef(
                machine_name=machine.name,
                machine_incarnation=machine.incarnation,
                job_name=handle.name,
                generation=handle.generation,
                digest=handle.digest,
                made_machine=made,
            ),
            inputs=self._inputs(),
            reason="re-attached to the job that an earlier try started" if status.attached else None,
        )
        self.context.store.write_stage(record)
        return record

    def poll(self) -> Polled:
        """Look at the job, and keep and return what it has printed since the last look.

        Raises:
            MachineLost: The machine is gone.
        """
        machine, handle, job = self._find_job()
        jobs = self.machine.jobs(machine)
        name = self.log_name(job)
        offset = self.context.store.log_size(name)
        status = jobs.poll(handle, offset)
        self.context.store.append_log(name, offset, status.log)
        fresh = status.log.decode(errors="replace")
        ended = status.state != "running" and status.next_offset >= status.log_size
        return Polled(status.state, fresh, ended)

    def finish(self) -> StageRecord:
        """Take the ended job's result, prove it, record it, and delete the machine that the stage made for itself.

        Returns:
            The stage's record: ``done``, or still ``running`` where the job has not ended.

        Raises:
            ConnectionLost: The machine was not reached; the job goes on, and a later try takes it up again.
            PipelineError: The job failed or its result is not what it should be; recorded as such.
        """
        record = self._running_record()
        try:
            proof = self._collect()
        except ConnectionLost:
            raise
        except PipelineError as error:
            self.fail(error)
            raise
        if proof is None:
            return record
        ended_at = datetime.now(UTC)
        seconds = (ended_at - record.started_at).total_seconds()
        machine = self.machine.find(record.job)
        price = machine.price_per_hour if machine else None
        done = record.model_copy(
            update={
                "state": "done",
                "ended_at": ended_at,
                "seconds": seconds,
                "cost": None if price is None else price * seconds / 3600,
                "outputs": dict(self.stage.outputs),
                "evidence": dict(proof.evidence),
            }
        )
        self.context.store.write_stage(done)
        self.machine.release()
        return done

    def fail(self, error: PipelineError) -> None:
        """Record why the stage failed, end its job, and delete the machine that it made for itself."""
        error.stage = error.stage or self.stage.name
        record = self.context.store.read_stage(self.stage.name)
        if record is None or record.state != "running":
            record = StageRecord(
                stage=self.stage.name, state="running", digest=self.stage.digest, started_at=datetime.now(UTC)
            )
        self.cancel_job(record)
        ended_at = datetime.now(UTC)
        failed = record.model_copy(
            update={
                "state": "failed",
                "ended_at": ended_at,
                "seconds": (ended_at - record.started_at).total_seconds(),
                "error": str(error),
                "error_class": type(error).__name__,
            }
        )
        self.context.store.write_stage(failed)
        self.machine.release()

    def cancel(self, reason: str) -> None:
        """End the stage because somebody asked for it."""
        self.fail(
            StageFailed(
                f"the stage was stopped: {reason}",
                left="its job was ended; what it had made before is in the store",
                next_step="clear the task to run it again",
            )
        )

    def seconds_over_limit(self) -> float:
        """Return by how much the stage's job has outrun its limit; negative while it has not."""
        started_at = self._running_record().started_at
        return (datetime.now(UTC) - started_at).total_seconds() - self.stage.limit_seconds

    def time_out(self) -> StageTimeout:
        """Return the error for a job that ran longer than its stage may."""
        return StageTimeout(
            f"the stage ran for more than its limit of {self.stage.limit_seconds / 60:.0f} minutes and was ended",
            left=f"the run's records and checkpoints, in {self.context.store.root}",
            next_step="raise the stage's limit in the recipe's `limits`, then clear the task",
        )

    def cancel_job(self, record: StageRecord) -> None:
        """End the job of a record, if its machine is still there."""
        machine = self.machine.find(record.job)
        if machine and record.job:
            handle = JobHandle(
                name=record.job.job_name, generation=record.job.generation, digest=record.job.digest
            )
            self.machine.jobs(machine).cancel(handle, CANCEL_GRACE_SECONDS)

    def _find_result(self, known: StageRecord | None) -> StageRecord | None:
        """Return the record of a result that is there already: of this run, or in the shared cache."""
        if not all(Path(path).exists() for path in self.stage.outputs.values()):
            return None
        if known and known.succeeded and known.digest == self.stage.digest:
            anew = f"to run it anew, delete {self.record_uri} and clear the task"
            return known.model_copy(update={"reason": f"this run has done it already; {anew}"})
        if not self.stage.shared:
            return None
        now = datetime.now(UTC)
        reused = StageRecord(
            stage=self.stage.name,
            state="reused",
            digest=self.stage.digest,
            started_at=now,
            ended_at=now,
            seconds=0.0,
            reason="the same was made by an earlier run",
            outputs=dict(self.stage.outputs),
        )
        self.context.store.write_stage(reused)
        return reused

    def _inputs(self) -> dict[str, str]:
        plan = self.context.plan
        return {
            f"{need}.{name}": path
            for need in self.stage.needs
            for name, path in plan.stage(need).outputs.items()
        }

    def _require_inputs(self) -> None:
        for name, path in self._inputs().items():
            if not Path(path).exists():
                needed = name.partition(".")[0]
                raise StageFailed(
                    f"its input {name} is not in the store: {path}",
                    stage=self.stage.name,
                    resource=path,
                    left="nothing was started",
                    next_step=f"clear the task {needed}, with downstream tasks",
                )

    def _running_record(self) -> StageRecord:
        record = self.context.store.read_stage(self.stage.name)
        if record is None or record.state != "running" or record.job is None:
            raise StageFailed(
                f"the stage's record says {record.state if record else 'nothing'}, not that a job runs",
                stage=self.stage.name,
                resource=str(self.record_uri),
                next_step="clear the task",
            )
        return record

    def _find_job(self) -> tuple[MachineRecord, JobHandle, JobRef]:
        record = self._running_record()
        assert record.job is not None
        machine = self.machine.find(record.job)
        if machine is None:
            raise MachineLost(
                f"the machine {record.job.machine_name} is gone",
                stage=self.stage.name,
                resource=record.job.machine_name,
                left=f"the checkpoints and records in {self.context.store.root}",
                next_step="nothing: the next try gets a new machine and goes on from the last checkpoint",
            )
        handle = JobHandle(
            name=record.job.job_name, generation=record.job.generation, digest=record.job.digest
        )
        return machine, handle, record.job

    def log_name(self, job: JobRef) -> str:
        """Return the name of a job's log in the store: each generation has its own."""
        return f"{self.stage.name}-{job.machine_incarnation[:8]}-{job.generation}"

    def read_file(self, file: str, offset: int) -> JobStatus:
        """Read a file of the job's directory from a byte offset, in ``log`` of what is returned.

        Raises:
            MachineLost: The machine is gone.
        """
        machine, handle, _ = self._find_job()
        return self.machine.jobs(machine).poll(handle, offset, file=file)

    def _collect(self) -> Proof | None:
        """Return the proof that the ended job did its work; None where it still runs."""
        machine, handle, job = self._find_job()
        jobs = self.machine.jobs(machine)
        while not (polled := self.poll()).ended:
            if polled.state == "running":
                return None
        name = self.log_name(job)
        status = jobs.poll(handle, self.context.store.log_size(name))
        log_path = self.context.store.log_path(name)
        if self.stage.name == "train":
            keep_training_events(
                self.context,
                lambda file: read_whole_file(lambda offset: jobs.poll(handle, offset, file=file)),
            )
            if verdict := find_verdict(self.context, log_path):
                raise verdict
        if status.state != "exited" or status.exit_code in KILLED_EXIT_CODES:
            jobs.collect(handle)
            raise self._killed(status, log_path)
        proof = prove(self.context, self.stage, status.exit_code or 0, log_path)
        jobs.collect(handle)
        return proof

    def _killed(self, status: JobStatus, log_path: Path) -> PipelineError:
        how = status.reason or f"exit code {status.exit_code}"
        return JobLost(
            f"the stage's job was killed from outside ({how})",
            stage=self.stage.name,
            resource=str(log_path),
            left=f"what it had written before, in {self.context.store.root}",
            next_step="nothing: the next try starts it again; if it happens each time, look for a lack of memory",
        )
