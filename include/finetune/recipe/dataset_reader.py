"""Find and read a dataset's files row by row, noting the file and line of everything that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from finetune.errors import RecipeError
from finetune.recipe.dataset import DatasetSource, FileFormat
from finetune.recipe.dataset_rows import Conversation, MissingColumn, RowError, read_row
from finetune.recipe.recipe import Recipe
from finetune.recipe.suggest import list_names

MAX_PROBLEMS = 20
WILDCARDS = "*?["
_PARQUET_BATCH_ROWS = 1024


@dataclass
class Problems:
    """What is wrong so far; full after ``MAX_PROBLEMS``."""

    lines: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether there is too much wrong to go on."""
        return len(self.lines) >= MAX_PROBLEMS

    def raise_any(self, recipe: Recipe) -> None:
        """Raise everything as one error, if there is anything."""
        if not self.lines:
            return
        listed = "".join(f"\n  - {line}" for line in self.lines)
        more = f"\n  (stopped after the first {MAX_PROBLEMS})" if self.full else ""
        raise RecipeError(
            f"The dataset of {recipe.name} cannot be trained on:{listed}{more}",
            resource="dataset.source.files",
            next_step="Correct the files or the recipe's section `dataset`, then trigger the run again.",
        )


def find_files(patterns: tuple[str, ...], problems: Problems) -> list[str]:
    """Return the files that patterns stand for, each once, as URLs or absolute paths, sorted in a pattern."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if problems.full:
            break
        try:
            matches = _expand(pattern)
        except IsADirectoryError:
            folder = pattern.rstrip("/")
            problems.lines.append(f"{pattern} is a folder; write {folder}/*.jsonl for the files in it")
            continue
        except (ImportError, ValueError, OSError) as error:
            problems.lines.append(f"{pattern} cannot be looked up: {error}")
            continue
        if not matches:
            wildcard = any(character in pattern for character in WILDCARDS)
            problems.lines.append(f"{pattern} {'matches no file' if wildcard else 'does not exist'}")
        found |= dict.fromkeys(matches)
    return list(found)


def _expand(pattern: str) -> list[str]:
    """Return one pattern's files; ``ImportError`` or ``ValueError`` for a scheme that does not open here."""
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(pattern)
    if any(character in path for character in WILDCARDS):
        matches = sorted(str(match) for match in filesystem.glob(path) if filesystem.isfile(match))
    elif filesystem.isdir(path):
        raise IsADirectoryError(pattern)
    else:
        matches = [path] if filesystem.exists(path) else []
    return [str(filesystem.unstrip_protocol(match)).removeprefix("file://") for match in matches]


def read_files(files: list[str], recipe: Recipe, problems: Problems) -> Iterator[Conversation]:
    """Yield every conversation of the files; what is wrong is noted, until there is too much of it."""
    columns = recipe.dataset.columns
    for file in files:
        rows = 0
        for unit, number, row in _read_rows(file, recipe.dataset.source, columns, problems):
            if problems.full:
                return
            rows += 1
            try:
                yield read_row(row, columns)
            except MissingColumn as error:
                problems.lines.append(f"{file}, {unit} {number}: {error}")
                break
            except RowError as error:
                problems.lines.append(f"{file}, {unit} {number}: {error}")
        if rows == 0 and not any(line.startswith(file) for line in problems.lines):
            problems.lines.append(f"{file} is empty")


def _read_rows(
    file: str, source: DatasetSource, columns: tuple[str, ...], problems: Problems
) -> Iterator[tuple[str, int, Any]]:
    """Yield a file's rows with their unit (line or row) and number, from 1."""
    import fsspec

    file_format: FileFormat = source.file_format(file)
    try:
        with fsspec.open(file, "rb", compression="infer") as stream:
            if file_format == "parquet":
                yield from _read_parquet_rows(file, stream, columns, problems)
            else:
                yield from _read_json_rows(file, stream, problems)
    except (OSError, EOFError) as error:
        problems.lines.append(f"{file} cannot be read: {error}")


def _read_json_rows(file: str, stream: IO[bytes], problems: Problems) -> Iterator[tuple[str, int, Any]]:
    for number, line in enumerate(stream, start=1):
        if problems.full:
            return
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not text:
                continue
            if number == 1 and text.startswith("["):
                problems.lines.append(
                    f"{file} holds one JSON list; needs one object a line (jq -c '.[]' makes it so)"
                )
                return
            row = json.loads(text)
        except UnicodeDecodeError as error:
            problems.lines.append(f"{file}, line {number}: is not UTF-8 text (byte {error.start + 1})")
        except json.JSONDecodeError as error:
            problems.lines.append(
                f"{file}, line {number}: is broken JSON: {error.msg} (column {error.colno})"
            )
        else:
            yield "line", number, row


def _read_parquet_rows(
    file: str, stream: IO[bytes], columns: tuple[str, ...], problems: Problems
) -> Iterator[tuple[str, int, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        parquet = pyarrow.parquet.ParquetFile(stream)
        there = parquet.schema_arrow.names
        missing = [column for column in columns if column not in there]
        if missing:
            listed = " and ".join(f"`{column}`" for column in missing)
            problems.lines.append(f"{file} has no column {listed} (columns there: {list_names(there)})")
            return
        number = 0
        for batch in parquet.iter_batches(_PARQUET_BATCH_ROWS, columns=list(columns)):
            for row in batch.to_pylist():
                number += 1
                yield "row", number, row
    except pyarrow.ArrowException as error:
        problems.lines.append(f"{file} is no readable Parquet file: {error}")
