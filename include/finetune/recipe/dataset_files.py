"""Check a dataset's files before anything is paid for, and split them into a train and a held-out part."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from finetune.errors import RecipeError
from finetune.recipe.dataset_reader import Problems, find_files, read_files
from finetune.recipe.dataset_rows import Conversation
from finetune.recipe.recipe import Recipe

SPLIT_COLUMNS = ("messages",)
"""The columns that ``write_split`` writes, whatever the source's were."""


@dataclass(frozen=True)
class DatasetReport:
    """What a dataset's files hold.

    Args:
        files: The files to train on, patterns resolved; empty for a source that is no files.
        heldout_files: The files that are held out, if the recipe names any.
        rows: Conversations in ``files``; ``None`` where only the machine can tell.
        heldout_rows: Conversations in ``heldout_files``; ``None`` where there are none.
    """

    files: tuple[str, ...]
    heldout_files: tuple[str, ...]
    rows: int | None
    heldout_rows: int | None


@dataclass(frozen=True)
class SplitReport:
    """The two files that ``write_split`` wrote.

    Args:
        train: JSON lines, each with the column ``messages``.
        heldout: The same for the held-out part; ``None`` where nothing is held out.
        train_rows: Conversations to train on.
        heldout_rows: Conversations held out.
        dropped_rows: Conversations left out of ``train`` because ``heldout_files`` have them too.
    """

    train: Path
    heldout: Path | None
    train_rows: int
    heldout_rows: int
    dropped_rows: int


def check_dataset(recipe: Recipe) -> DatasetReport:
    """Read every row of a file dataset and return what is there; sources that are no files pass unread.

    Raises:
        RecipeError: With up to 20 problems, each with its file and line.
    """
    source = recipe.dataset.source
    if source.files is None:
        return DatasetReport((), (), None, None)
    problems = Problems()
    files = find_files(source.files, problems)
    heldout_files = find_files(source.heldout_files or (), problems)
    rows = sum(1 for _ in read_files(files, recipe, problems))
    heldout_rows = sum(1 for _ in read_files(heldout_files, recipe, problems))
    problems.raise_any(recipe)
    return DatasetReport(tuple(files), tuple(heldout_files), rows, heldout_rows if heldout_files else None)


def write_split(recipe: Recipe, out_dir: Path) -> SplitReport:
    """Write ``train.jsonl`` and ``heldout.jsonl``, one ``{"messages": [...]}`` a line, from a file dataset.

    Without ``heldout_files``, a conversation is held out by the hash of its first user message: the same rows
    in every run, and the same question never on both sides. A file appears complete or not at all,
    ``train.jsonl`` last.

    Raises:
        RecipeError: The files cannot be read or trained on, or a part would be empty.
        ValueError: The source is no files.
    """
    source = recipe.dataset.source
    if source.files is None:
        raise ValueError(f"the dataset of {recipe.name} is no files")
    problems = Problems()
    files = find_files(source.files, problems)
    heldout_files = find_files(source.heldout_files or (), problems)
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=out_dir) as work:
        train, heldout = Path(work) / "train.jsonl", Path(work) / "heldout.jsonl"
        counts = _write_parts(recipe, files, heldout_files, train, heldout, problems)
        problems.raise_any(recipe)
        _check_parts(recipe, *counts)
        final_heldout = out_dir / heldout.name if recipe.dataset.has_heldout() else None
        if final_heldout is not None:
            heldout.replace(final_heldout)
        train.replace(out_dir / train.name)
    return SplitReport(out_dir / train.name, final_heldout, *counts)


def _write_parts(
    recipe: Recipe,
    files: list[str],
    heldout_files: list[str],
    train: Path,
    heldout: Path,
    problems: Problems,
) -> tuple[int, int, int]:
    """Write both parts and return their rows, and those dropped from the first for being in the second."""
    train_rows = heldout_rows = dropped_rows = 0
    seen: set[bytes] = set()
    percent = 0 if heldout_files else recipe.dataset.heldout_percent
    with ExitStack() as stack:
        train_file = stack.enter_context(train.open("w", encoding="utf-8"))
        heldout_file = stack.enter_context(heldout.open("w", encoding="utf-8"))
        for conversation in read_files(heldout_files, recipe, problems):
            seen.add(_digest(repr(conversation.messages)))
            heldout_rows += _write_row(heldout_file, conversation)
        for conversation in read_files(files, recipe, problems):
            if is_held_out(conversation, percent):
                heldout_rows += _write_row(heldout_file, conversation)
            elif seen and _digest(repr(conversation.messages)) in seen:
                dropped_rows += 1
            else:
                train_rows += _write_row(train_file, conversation)
        for file in (train_file, heldout_file):
            file.flush()
            os.fsync(file.fileno())
    return train_rows, heldout_rows, dropped_rows


def is_held_out(conversation: Conversation, heldout_percent: int) -> bool:
    """Tell whether a conversation belongs to the held-out part, by the hash of its first user message."""
    return int.from_bytes(_digest(conversation.first_prompt())[:8], "big") % 100 < heldout_percent


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _write_row(file: IO[str], conversation: Conversation) -> int:
    file.write(json.dumps({"messages": conversation.messages}, ensure_ascii=False) + "\n")
    return 1


def _check_parts(recipe: Recipe, train_rows: int, heldout_rows: int, dropped_rows: int) -> None:
    """Refuse a split with nothing on one side."""
    if train_rows == 0:
        cause = f"all {heldout_rows} conversations are held out and none is left to train on"
        if dropped_rows:
            cause = f"all {dropped_rows} conversations to train on are in heldout_files too"
    elif recipe.dataset.has_heldout() and heldout_rows == 0:
        cause = (
            f"none of the {train_rows} conversations fell into the held-out"
            f" {recipe.dataset.heldout_percent} percent"
        )
    else:
        return
    raise RecipeError(
        f"The dataset of {recipe.name} cannot be split: {cause}.",
        resource="dataset.heldout_percent",
        next_step="Give more conversations, another dataset.heldout_percent, or"
        " dataset.source.heldout_files.",
    )
