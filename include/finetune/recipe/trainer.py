"""How to train: one class for each kind of trainer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from finetune.recipe.base import OptionValue, Section, raise_problems
from finetune.recipe.options import check_options

_RUN_PARAM: dict[str, Any] = {"run_param": "Training"}


class EvalSection(Section):
    """The trainer's own evaluation on the held-out part, before the first step and after the last."""

    steps: int | None = Field(
        None, ge=1, description="Batches to evaluate; null means the whole held-out part once."
    )
    per_device_batch_size: int | None = Field(
        None,
        ge=1,
        description="Conversations per device in one batch; null means `trainer.per_device_batch_size`.",
    )


class MaxTextSft(Section):
    """Supervised fine-tuning of all weights with MaxText."""

    kind: Literal["maxtext-sft"] = Field(description="The kind of trainer.")
    version: Literal["0.2.2", "0.2.5"] = Field("0.2.5", description="The version of MaxText.")
    steps: int = Field(
        ge=1,
        title="Steps",
        description="Training steps; the run succeeds only if the last one was made.",
        examples=[1000],
        json_schema_extra=_RUN_PARAM,
    )
    per_device_batch_size: int = Field(
        1,
        ge=1,
        title="Batch size per device",
        description="Sequences per device (TPU chip) and step.",
        json_schema_extra=_RUN_PARAM,
    )
    max_target_length: int = Field(
        1024,
        ge=8,
        title="Longest sequence",
        description="Tokens per sequence; what is longer is cut.",
        json_schema_extra=_RUN_PARAM,
    )
    learning_rate: float = Field(
        2e-5,
        gt=0,
        le=1,
        title="Learning rate",
        description="The highest learning rate of the schedule. The default is the one of MaxText's SFT.",
        json_schema_extra=_RUN_PARAM,
    )
    checkpoint_period: int = Field(
        500,
        ge=1,
        title="Checkpoint period",
        description="Steps from one checkpoint to the next, which is what a preemption can cost. (MaxText's"
        " own default of 10,000 means none in most fine-tunes.)",
        json_schema_extra=_RUN_PARAM,
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        title="Seed",
        description="Decides the order of the data.",
        json_schema_extra=_RUN_PARAM,
    )
    eval: EvalSection | None = Field(
        None, description="An evaluation on the held-out part at the end; null means none."
    )
    stall_timeout_minutes: int = Field(
        30,
        ge=1,
        le=24 * 60,
        description="No new step for so long means that training has stalled; the job is ended.",
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict,
        description="Any other option of MaxText, passed on as it is. Names and types are checked against"
        " the version's own table; what the run sets itself is refused.",
        examples=[{"dtype": "bfloat16", "warmup_steps_fraction": 0.1}],
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        version = info.data.get("version")
        if version is not None:
            raise_problems(check_options(options, version))
        return options
