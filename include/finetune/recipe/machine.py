"""The machines that a recipe runs on, by role."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from finetune.recipe import patterns
from finetune.recipe.base import Distinct, EnvText, OptionalEnvText, Problem, Section, Tuple, raise_problems
from finetune.recipe.catalogue import (
    TpuMachineType,
    cpu_machine_types,
    tpu_accelerator_types,
    tpu_machine_types,
)
from finetune.recipe.suggest import did_you_mean, list_names, show_value

ProvisioningModel = Literal["reservation-bound", "spot", "flex-start", "on-demand"]

MAX_RUN_HOURS = 120 * 24
"""Compute Engine's longest ``maxRunDuration`` (cloud.google.com/compute/docs/instances/limit-vm-runtime)."""

MAX_FLEX_START_HOURS = 7 * 24
"""Flex-start's longest run: 7 days (cloud.google.com/compute/docs/instances/about-flex-start-vms)."""

Zones = Annotated[tuple[EnvText, ...], Tuple, Distinct]


class LocalMachine(Section):
    """This machine itself: a working directory, and the CPU."""

    kind: Literal["local"] = Field(description="The kind of machine.")
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads that a job may use; null means all of them."
    )


class GoogleMachine(Section):
    """What Google's two kinds of machine share."""

    project: EnvText = Field(
        pattern=patterns.PROJECT,
        description="The Google Cloud project to create it in and to bill.",
        examples=["my-project"],
    )
    zones: Zones = Field(
        min_length=1, description="Zones to try, in this order.", examples=[["us-east5-b", "europe-west4-a"]]
    )
    provisioning_model: ProvisioningModel = Field(
        "on-demand",
        description="How the capacity is had: a `reservation-bound` machine needs `reservation`; `spot` may"
        " be taken away at any time; `flex-start` waits for capacity and lasts at most 7 days.",
    )
    reservation: OptionalEnvText = Field(
        None,
        pattern=patterns.RESERVATION,
        description="The reservation's name, or `projects/<project>/reservations/<name>` for another"
        " project's.",
        examples=["my-reservation"],
    )
    network: EnvText = Field("default", min_length=1, description="The network to join.")
    subnetwork: OptionalEnvText = Field(
        None, description="The subnetwork to join; null means the network's own for the region."
    )
    service_account: OptionalEnvText = Field(
        None,
        pattern=patterns.ACCOUNT,
        description="The account that the machine acts as; null means the project's default one.",
        examples=["trainer@my-project.iam.gserviceaccount.com"],
    )
    max_run_hours: int = Field(
        24,
        ge=1,
        le=MAX_RUN_HOURS,
        description="Google itself deletes the machine after so long, even if everything here is dead. Must"
        " be more than `limits.train_hours`.",
    )

    def check_capacity(self, machine: TpuMachineType | None) -> list[Problem]:
        """Return what is wrong with reservation, run time and zones."""
        problems: list[Problem] = []
        bound = self.provisioning_model == "reservation-bound"
        if bound and self.reservation is None:
            problems.append(Problem(("reservation",), "is needed with provisioning_model reservation-bound"))
        if not bound and self.reservation is not None:
            text = f"goes with provisioning_model reservation-bound only; given {self.provisioning_model}"
            problems.append(Problem(("reservation",), text))
        if self.provisioning_model == "flex-start" and self.max_run_hours > MAX_FLEX_START_HOURS:
            text = f"given {self.max_run_hours}; flex-start lasts at most {MAX_FLEX_START_HOURS} hours"
            problems.append(Problem(("max_run_hours",), text))
        for index, zone in enumerate(self.zones if machine else ()):
            assert machine is not None
            if zone not in machine.zones:
                problems.append(
                    Problem(
                        ("zones", index),
                        f"given {show_value(zone)}, which has no"
                        f" {machine.generation}.{did_you_mean(zone, machine.zones)}"
                        f" It is in: {', '.join(machine.zones)}",
                    )
                )
        return problems


class ComputeEngineMachine(GoogleMachine):
    """A virtual machine of Compute Engine."""

    kind: Literal["compute-engine"] = Field(description="The kind of machine.")
    machine_type: str = Field(
        description="Compute Engine's machine type; the role `tpu` needs one with chips.",
        examples=["ct6e-standard-8t"],
    )
    image_family: str | None = Field(
        None,
        pattern=patterns.RESOURCE,
        description="The image family; null means Google's for the machine type.",
    )
    image_project: str | None = Field(
        None, pattern=patterns.PROJECT, description="The project of the image family; null means Google's."
    )
    boot_disk_gb: int = Field(
        200,
        ge=50,
        le=65536,
        description="Size of the boot disk. (Google's own default of 10 GB is full before training starts.)",
    )
    boot_disk_type: str | None = Field(
        None,
        description="Type of the boot disk; null means the first that the machine type takes.",
        examples=["hyperdisk-balanced"],
    )

    @model_validator(mode="after")
    def _check_together(self) -> ComputeEngineMachine:
        machine = tpu_machine_types().get(self.machine_type)
        problems = self.check_capacity(machine)
        if machine is None and self.machine_type not in cpu_machine_types():
            problems.append(
                unknown_type("machine_type", self.machine_type, (*tpu_machine_types(), *cpu_machine_types()))
            )
        if machine and self.boot_disk_type is not None and self.boot_disk_type not in machine.boot_disk_types:
            text = (
                f"given {show_value(self.boot_disk_type)}; {self.machine_type} takes"
                f" {', '.join(machine.boot_disk_types)}"
            )
            problems.append(Problem(("boot_disk_type",), text))
        raise_problems(problems)
        return self

    def tpu(self) -> TpuMachineType | None:
        """Return the catalogue's entry for the machine's chips; ``None`` for a machine without."""
        return tpu_machine_types().get(self.machine_type)


class CloudTpuMachine(GoogleMachine):
    """A node of the Cloud TPU API."""

    kind: Literal["cloud-tpu"] = Field(description="The kind of machine.")
    accelerator_type: str = Field(
        description="Cloud TPU's accelerator type, of one host.", examples=["v6e-8"]
    )
    runtime_version: str | None = Field(
        None,
        pattern=patterns.RESOURCE,
        description="The TPU software version; null means Google's for the accelerator type.",
    )

    @model_validator(mode="after")
    def _check_together(self) -> CloudTpuMachine:
        machine = tpu_accelerator_types().get(self.accelerator_type)
        problems = self.check_capacity(machine)
        if machine is None:
            problems.append(unknown_type("accelerator_type", self.accelerator_type, tpu_accelerator_types()))
        raise_problems(problems)
        return self

    def tpu(self) -> TpuMachineType:
        """Return the catalogue's entry for the machine's chips."""
        return tpu_accelerator_types()[self.accelerator_type]


def unknown_type(field: str, given: str, allowed: Iterable[str]) -> Problem:
    """Return the problem of a machine that the catalogue does not have."""
    names = list(allowed)
    return Problem(
        (field,),
        f"given {show_value(given)}, which is unknown.{did_you_mean(given, names)} Known: {list_names(names)}",
    )


Machine = Annotated[LocalMachine | ComputeEngineMachine | CloudTpuMachine, Field(discriminator="kind")]


class MachinesSection(Section):
    """Which machine each role gets."""

    tpu: Machine = Field(description="The machine that trains.")
    cpu: Machine | None = Field(
        None,
        description="The machine that converts and exports, so that no TPU is paid for meanwhile; null means"
        " the `tpu` machine.",
    )

    @model_validator(mode="after")
    def _check_roles(self) -> MachinesSection:
        problems: list[Problem] = []
        if isinstance(self.tpu, ComputeEngineMachine) and self.tpu.tpu() is None:
            text = (
                f"given {show_value(self.tpu.machine_type)}, which has no TPU; the role tpu needs one of"
                f" {', '.join(tpu_machine_types())}"
            )
            problems.append(Problem(("tpu", "machine_type"), text))
        if isinstance(self.cpu, CloudTpuMachine):
            problems.append(
                Problem(("cpu", "kind"), "given 'cloud-tpu'; the role cpu needs local or compute-engine")
            )
        if isinstance(self.cpu, ComputeEngineMachine) and self.cpu.tpu() is not None:
            text = (
                f"given {show_value(self.cpu.machine_type)}, a TPU machine; leave `cpu` out to convert and export"
                f" on the tpu machine"
            )
            problems.append(Problem(("cpu", "machine_type"), text))
        raise_problems(problems)
        return self
