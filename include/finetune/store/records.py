"""What the store remembers of a run and of each of its stages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

StageState = Literal["running", "done", "reused", "failed"]


class Record(BaseModel):
    """A JSON document of the store; unknown keys are kept out, old schema versions stay readable."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = SCHEMA_VERSION


class RunRecord(Record):
    """One run of one recipe: what was asked for, by whom, and with which parameters."""

    recipe_name: str
    run_id: str
    started_at: datetime
    recipe: dict[str, Any]
    recipe_digest: str
    params: dict[str, Any]
    versions: dict[str, str]


class JobRef(Record):
    """Where a stage's job runs, so that a later try finds it again."""

    machine_name: str
    machine_incarnation: str
    job_name: str
    generation: int
    digest: str
    made_machine: bool


class StageRecord(Record):
    """One stage of one run: its last state, and the evidence for it.

    ``seconds`` counts from the stage's begin to its end; ``cost`` is in US dollars, None where the machine has
    no price.
    """

    stage: str
    state: StageState
    digest: str
    started_at: datetime
    ended_at: datetime | None = None
    seconds: float | None = None
    cost: float | None = None
    reason: str | None = None
    job: JobRef | None = None
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    evidence: dict[str, Any] = {}
    error: str | None = None
    error_class: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the stage's outputs may be used."""
        return self.state in ("done", "reused")
