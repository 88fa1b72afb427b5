"""Google's machine types and where they exist, as data that is checked before any call is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from finetune.recipe.yaml_text import read_yaml_mapping


@dataclass(frozen=True)
class TpuMachineType:
    """A virtual machine with TPU chips.

    Args:
        name: Compute Engine's name, such as ``ct6e-standard-8t``.
        accelerator_type: Cloud TPU's name for the same slice, such as ``v6e-8``.
        chips: TPU chips on the machine.
        topology: Chips along each axis, such as ``2x4``.
        zones: Zones that have this generation.
        boot_disk_types: Types of boot disk that this generation takes; the first is the default.
        image_family: Google's image for this generation.
        runtime_version: The Cloud TPU software version for this generation.
    """

    name: str
    generation: str
    accelerator_type: str
    chips: int
    topology: str
    zones: tuple[str, ...]
    boot_disk_types: tuple[str, ...]
    image_family: str
    runtime_version: str


@cache
def tpu_machine_types() -> Mapping[str, TpuMachineType]:
    """Return TPU machine types by Compute Engine's name."""
    table = _read()
    return {
        name: TpuMachineType(
            name=name,
            zones=tuple(table["generations"][entry["generation"]]["zones"]),
            boot_disk_types=tuple(table["generations"][entry["generation"]]["boot_disk_types"]),
            image_family=table["generations"][entry["generation"]]["image_family"],
            runtime_version=table["generations"][entry["generation"]]["runtime_version"],
            **entry,
        )
        for name, entry in table["tpu_machine_types"].items()
    }


@cache
def tpu_accelerator_types() -> Mapping[str, TpuMachineType]:
    """Return the same machines by Cloud TPU's accelerator type."""
    return {machine.accelerator_type: machine for machine in tpu_machine_types().values()}


@cache
def cpu_machine_types() -> tuple[str, ...]:
    """Return the machine types without an accelerator."""
    return tuple(f"{family}-{vcpus}" for family, sizes in _read()["cpu_families"].items() for vcpus in sizes)


@cache
def _read() -> dict[str, dict]:  # type: ignore[type-arg]
    return read_yaml_mapping(Path(__file__).with_name("machine_types.yaml"))
