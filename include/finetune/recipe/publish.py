"""What happens around training: limits, checks, publication and messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from finetune.recipe import patterns
from finetune.recipe.base import EnvText, Section, Tuple, raise_problem
from finetune.recipe.suggest import show_value


class LimitsSection(Section):
    """How long each stage may take before its job is ended."""

    install_minutes: int = Field(30, ge=1, le=24 * 60, description="Installing the trainer.")
    convert_minutes: int = Field(
        60, ge=1, le=24 * 60, description="Converting the checkpoint for the trainer."
    )
    train_hours: int = Field(12, ge=1, le=100 * 24, description="Training, resumptions included.")
    export_minutes: int = Field(60, ge=1, le=24 * 60, description="Exporting to Hugging Face format.")
    check_minutes: int = Field(60, ge=1, le=24 * 60, description="Checking the exported model.")


Prompt = Annotated[str, Field(min_length=1, max_length=2000)]


class ChecksSection(Section):
    """What must hold before anything is published."""

    prompts: Annotated[tuple[Prompt, ...], Tuple] = Field(
        (),
        max_length=10,
        description="Questions that the model answers before and after, for a person to read.",
        examples=[["What is AI?"]],
    )
    max_new_tokens: int = Field(48, ge=1, le=2048, description="Tokens in an answer, at most.")
    heldout_examples: int = Field(
        200, ge=1, le=100_000, description="Held-out conversations to measure the loss on, at most."
    )
    min_heldout_improvement: float | None = Field(
        0.0,
        ge=0,
        title="Least improvement",
        description="The loss on the held-out part must fall by at least this; null switches the gate off.",
        json_schema_extra={"run_param": "Checks"},
    )


class GcsTarget(Section):
    """A folder of a Google Cloud Storage bucket."""

    uri: EnvText = Field(
        pattern=patterns.GCS_URI,
        description="Where the model goes.",
        examples=["gs://my-bucket/models/gemma3-4b"],
    )


class HubTarget(Section):
    """A model repository of the Hugging Face Hub."""

    repo_id: EnvText = Field(
        pattern=patterns.HUB_ID,
        description="The repository, as `owner/name`.",
        examples=["my-org/gemma3-4b-ultrachat"],
    )
    private: bool = Field(True, description="Whether a repository that does not exist yet is made private.")


class PublishSection(Section):
    """Where a model that passed its checks is published; all null means that it stays in the store."""

    gcs: GcsTarget | None = Field(None, description="Google Cloud Storage; null means not there.")
    hub: HubTarget | None = Field(None, description="The Hugging Face Hub; null means not there.")


def _refuse_messages(connections: tuple[str, ...]) -> tuple[str, ...]:
    if connections:
        raise_problem(
            f"given {show_value(list(connections))}, but this version does not send messages yet; leave the list empty"
        )
    return connections


Connections = Annotated[tuple[str, ...], Tuple, AfterValidator(_refuse_messages)]


class NotificationsSection(Section):
    """Whom to tell. This version sends no messages yet and refuses any entry: nobody shall wait for one."""

    on_success: Connections = Field((), description="Must be empty in this version.")
    on_failure: Connections = Field((), description="Must be empty in this version.")
