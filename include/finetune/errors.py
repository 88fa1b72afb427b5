"""Every way in which a run can fail, with what it leaves behind and what to do next."""

from __future__ import annotations


class PipelineError(Exception):
    """A failure explained to the person who reads it in the morning.

    Args:
        cause: What failed and why, in one or two sentences.
        stage: The stage that failed, where one was running.
        resource: The machine, file, field or URI that the failure is about.
        left: What is still running or stored after the failure.
        next_step: The next command or click.
    """

    retryable = False

    def __init__(
        self,
        cause: str,
        *,
        stage: str | None = None,
        resource: str | None = None,
        left: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.cause = cause
        self.stage = stage
        self.resource = resource
        self.left = left
        self.next_step = next_step
        super().__init__(cause)

    def __str__(self) -> str:
        where = f" in {self.stage}" if self.stage else ""
        lines = [f"{type(self).__name__}{where}: {self.cause}"]
        labelled = (("About", self.resource), ("Left behind", self.left), ("Next", self.next_step))
        lines += [f"  {label}: {text}" for label, text in labelled if text]
        return "\n".join(lines)


class RecipeError(PipelineError):
    """The recipe, or the data that it names, cannot be right; refused before any cost."""


class StoreError(PipelineError):
    """The store cannot be read or written."""


class CapacityError(PipelineError):
    """No machine is to be had now (stockout)."""

    retryable = True


class QuotaError(PipelineError):
    """The account's quota does not allow the machine."""


class AccessDenied(PipelineError):
    """The account lacks a role or permission."""


class ReservationError(PipelineError):
    """The reservation is missing, full or not usable for this machine."""


class ConnectionLost(PipelineError):
    """The machine could not be reached this once, which says nothing about the machine or its jobs."""

    retryable = True


class MachineLost(PipelineError):
    """The machine is gone: preempted, host error or deleted."""

    retryable = True


class MachineFault(PipelineError):
    """The machine is up but broken: devices missing, disk full, no interpreter."""

    retryable = True


class JobLost(PipelineError):
    """A job's process is gone without an exit code (killed), on a machine that lives."""

    retryable = True


class StageFailed(PipelineError):
    """A stage's command ended with an error, or without the evidence of success."""


class StageTimeout(PipelineError):
    """A stage ran longer than its limit; its job was cancelled."""


class TrainingStalled(PipelineError):
    """No training step for too long; the job was cancelled."""


class TrainingDiverged(PipelineError):
    """The loss is not a finite number; the job was cancelled."""


class TrainingIncomplete(PipelineError):
    """The trainer ended without an error but without having done what was asked."""


class ExportMismatch(PipelineError):
    """The exported model is not what the source and the training say that it should be."""


class QualityGateFailed(PipelineError):
    """A check on the model's quality failed; nothing is published."""


class AuthError(PipelineError):
    """A token is missing, wrong or without rights."""
