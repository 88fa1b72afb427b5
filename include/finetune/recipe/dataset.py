"""The conversations that a model is trained on."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from finetune.recipe import patterns
from finetune.recipe.base import (
    Distinct,
    LocalPath,
    Problem,
    Section,
    Tuple,
    raise_problem,
    raise_problems,
)
from finetune.recipe.model import check_exactly_one
from finetune.recipe.suggest import show_value

FileFormat = Literal["json", "parquet"]
COLUMN_SETS: tuple[tuple[str, ...], ...] = (("messages",), ("prompt", "completion"), ("question", "answer"))
"""The columns that MaxText's chat pipeline knows how to read."""

_SUFFIX_FORMATS: dict[str, FileFormat] = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_HUB_FIELDS = ("subset", "revision", "train_split", "heldout_split")
_FILES_FIELDS = ("heldout_files", "format")


def _check_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    if columns not in COLUMN_SETS:
        allowed = " or ".join(f"[{', '.join(names)}]" for names in COLUMN_SETS)
        raise_problem(f"given {show_value(list(columns))}; the trainer reads {allowed}, in this order")
    return columns


def _check_split(split: str | None) -> str | None:
    if split is not None and re.fullmatch(r"\w+(?:\.\w+)*", split) is None:
        raise_problem(
            f"given {show_value(split)}; must be a split's bare name, such as train (a slice cannot be streamed)"
        )
    return split


def _check_revision(revision: str | None) -> str | None:
    if revision not in (None, "main"):
        raise_problem(
            f"given {show_value(revision)}; MaxText reads the main branch of a dataset only, so leave it out"
        )
    return revision


SplitName = Annotated[str | None, AfterValidator(_check_split)]
FilePatterns = Annotated[tuple[LocalPath, ...], Tuple, Distinct]


class DatasetSource(Section):
    """Where the conversations come from: exactly one of `bundled`, `hub` and `files`."""

    bundled: Literal["chatterbot"] | None = Field(
        None,
        description="A dataset that comes from PyPI: the English dialogues of ChatterBot's corpus.",
        examples=["chatterbot"],
    )
    hub: str | None = Field(
        None,
        pattern=patterns.HUB_ID,
        description="A dataset of the Hugging Face Hub, as `owner/name`.",
        examples=["HuggingFaceH4/ultrachat_200k"],
    )
    subset: str | None = Field(
        None,
        min_length=1,
        description="With `hub` only: the dataset's subset (configuration), where it has several.",
    )
    revision: Annotated[str | None, AfterValidator(_check_revision)] = Field(
        None,
        description="With `hub` only: null or `main`, because MaxText reads no other revision of a dataset.",
    )
    train_split: SplitName = Field(
        None,
        description="With `hub` only: the split to train on; null means `train`.",
        examples=["train_sft"],
    )
    heldout_split: SplitName = Field(
        None,
        description="With `hub` only: the split that is kept out of training, to measure with.",
        examples=["test_sft"],
    )
    files: FilePatterns | None = Field(
        None,
        min_length=1,
        description="Files to train on: paths (absolute, `~/...`, or relative to the recipe file) or URLs,"
        " `*` and `?` allowed.",
        examples=[["data/*.jsonl", "gs://my-bucket/chats/*.parquet"]],
    )
    heldout_files: FilePatterns | None = Field(
        None,
        min_length=1,
        description="With `files` only: the files that are kept out of training, to measure with.",
    )
    format: FileFormat | None = Field(
        None,
        description="With `files` only: `json` (one JSON object a line) or `parquet`; null means by the"
        " files' suffix (.jsonl, .json, .ndjson, .parquet; .gz after it is unpacked).",
    )

    @model_validator(mode="after")
    def _check_together(self) -> DatasetSource:
        problems = check_exactly_one(self, ("bundled", "hub", "files"), only_hub=_HUB_FIELDS)
        if not problems and self.files is None:
            problems += [
                Problem((name,), "goes with `files` only; remove it")
                for name in _FILES_FIELDS
                if getattr(self, name) is not None
            ]
        if not problems:
            problems += _check_formats(self) + _check_apart(self)
        raise_problems(problems)
        return self

    def file_format(self, path: str) -> FileFormat:
        """Return the format of one of the files."""
        return self.format or _SUFFIX_FORMATS[_format_suffix(path)]


def _format_suffix(path: str) -> str:
    return PurePosixPath(path.lower().removesuffix(".gz")).suffix


def _check_apart(source: DatasetSource) -> list[Problem]:
    """Return what is both trained on and held out."""
    if source.hub is not None and source.heldout_split == (source.train_split or "train"):
        return [
            Problem(("heldout_split",), f"given {show_value(source.heldout_split)}, which is trained on too")
        ]
    both = set(source.files or ()) & set(source.heldout_files or ())
    return (
        [Problem(("heldout_files",), f"has {', '.join(sorted(both))}, which is trained on too")]
        if both
        else []
    )


def _check_formats(source: DatasetSource) -> list[Problem]:
    """Return the files whose format their suffix does not tell."""
    if source.format is not None:
        return []
    problems: list[Problem] = []
    for field in ("files", "heldout_files"):
        for index, pattern in enumerate(getattr(source, field) or ()):
            if _format_suffix(pattern) not in _SUFFIX_FORMATS:
                known = ", ".join(_SUFFIX_FORMATS)
                message = (
                    f"given {show_value(pattern)}, whose suffix does not tell its format ({known});"
                    " set dataset.source.format to json or parquet"
                )
                problems.append(Problem((field, index), message))
    return problems


class DatasetSection(Section):
    """Which conversations to train on, and which to keep for measuring."""

    source: DatasetSource = Field(description="Where the conversations come from.")
    heldout_percent: int = Field(
        10,
        ge=0,
        le=50,
        description="For `bundled` (1 at least) and for `files` without `heldout_files`: how many of a"
        " hundred conversations are kept out of training. Which ones is decided by a hash of their first"
        " question, so it stays the same from run to run.",
    )
    columns: Annotated[tuple[str, ...], Tuple, AfterValidator(_check_columns)] = Field(
        ("messages",),
        description="The columns to read: `[messages]` (a list of role and content), `[prompt, completion]`"
        " or `[question, answer]`.",
    )

    @model_validator(mode="after")
    def _check_bundled(self) -> DatasetSection:
        problems: list[Problem] = []
        if self.source.bundled is not None and self.columns != ("messages",):
            problems.append(Problem(("columns",), "must be [messages] for a bundled dataset"))
        if self.source.bundled is not None and self.heldout_percent == 0:
            problems.append(
                Problem(("heldout_percent",), "given 0; must be at least 1 for a bundled dataset")
            )
        raise_problems(problems)
        return self

    def training_columns(self) -> tuple[str, ...]:
        """Return the columns that the trainer reads: files are brought into ``messages`` first."""
        return self.columns if self.source.hub is not None else ("messages",)

    def has_heldout(self) -> bool:
        """Tell whether a part of the data is kept out of training."""
        if self.source.hub is not None:
            return self.source.heldout_split is not None
        return self.source.heldout_files is not None or self.heldout_percent > 0
