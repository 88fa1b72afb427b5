"""What every provider of machines offers, and the records that it keeps."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from finetune.remote.jobs import Jobs
from finetune.remote.transport import Transport

Role = Literal["tpu", "cpu", "worker"]
ROLES: tuple[Role, ...] = get_args(Role)
MAX_NAME_LENGTH = 63  # RFC 1035 labels, which cloud instances must be as well
HALF_MADE = ""  # the incarnation of what a killed create or delete left: it can be deleted, not used


@dataclass(frozen=True)
class MachineSpec:
    """What a stage asks for: a role, and the recipe's section about the machine of that role."""

    role: Role
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


class MachineRecord(BaseModel):
    """A machine that was made: ``incarnation`` tells it from a later one of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    name: str
    incarnation: str = Field(default_factory=lambda: uuid.uuid4().hex)
    role: Role
    labels: dict[str, str]
    root: str
    created_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    price_per_hour: float | None = None


class DeletionReport(BaseModel):
    """What a deletion removed, in words; empty when there was nothing left to delete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deleted: list[str]


class MachineProvider(Protocol):
    """Makes, finds and deletes machines of one kind. Labels: recipe, run, role, owner."""

    def create(self, spec: MachineSpec, labels: Mapping[str, str]) -> MachineRecord:
        """Return the run's machine of this role, made now unless it exists; safe against two at once."""
        ...

    def find(self, labels: Mapping[str, str]) -> list[MachineRecord]:
        """Return the machines that carry all these labels, half-made ones too."""
        ...

    def exists(self, record: MachineRecord) -> bool:
        """Tell whether this very incarnation still exists."""
        ...

    def jobs(self, record: MachineRecord) -> Jobs:
        """Return the machine's jobs."""
        ...

    def transport(self, record: MachineRecord) -> Transport:
        """Return the way to run a short command on the machine."""
        ...

    def delete(self, record: MachineRecord) -> DeletionReport:
        """End the machine's jobs and delete it; does nothing where it is gone already."""
        ...

    def leftovers(self, labels: Mapping[str, str]) -> list[str]:
        """Return, in words, everything that still exists for these labels."""
        ...


def build_machine_name(labels: Mapping[str, str]) -> str:
    """Return the one name of the machine for recipe, run and role: readable, and unlike any other run's."""
    identity = hashlib.sha256(f"{labels['recipe']}\0{labels['run']}".encode()).hexdigest()[:8]
    name = f"{slugify(labels['recipe'])}-{slugify(labels['run'])}-{identity}-{labels['role']}"
    assert len(name) <= MAX_NAME_LENGTH
    return name


def slugify(text: str, limit: int = 22) -> str:
    """Return a text as lower-case letters, digits and single hyphens, at most ``limit`` long."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].strip("-")
    return slug if slug[:1].isalpha() else f"x{slug}"[:limit]
