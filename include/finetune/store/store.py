"""The store on a file system: records are replaced atomically, events and logs only ever grow."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finetune.errors import StoreError
from finetune.store.records import RunRecord, StageRecord

RUN_MARGIN_BYTES = 64 * 1024


class Store:
    """The root of everything that outlives a machine.

    Args:
        url: ``file:///absolute/path`` or an absolute path.

    Raises:
        StoreError: The URL's scheme cannot be opened by this version.
    """

    def __init__(self, url: str) -> None:
        path = url.removeprefix("file://")
        if "://" in path or not path.startswith("/"):
            raise StoreError(
                f"the store {url!r} cannot be opened: this version reads and writes file:// stores only",
                resource=url,
                left="nothing was created",
                next_step="set `store:` in the recipe to file:///an/absolute/folder, or leave it out",
            )
        self.root = Path(path)

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"file://{self.root}"

    def cache_path(self, kind: str, digest: str) -> Path:
        """Return where a shared artifact of this kind and content digest stands, or would stand."""
        return self.root / "cache" / kind / digest

    def run(self, recipe_name: str, run_id: str) -> RunStore:
        """Return the part of the store that belongs to one run."""
        return RunStore(self.root / "runs" / recipe_name / safe_name(run_id))

    def runs(self, recipe_name: str | None = None) -> list[RunStore]:
        """Return every recorded run, the newest first."""
        pattern = f"runs/{recipe_name or '*'}/*/run.json"
        found = [RunStore(path.parent) for path in self.root.glob(pattern)]
        return sorted(found, key=lambda run: run.read_run().started_at, reverse=True)

    def check_writable(self) -> None:
        """Prove that a file can be written and read back.

        Raises:
            StoreError: It cannot.
        """
        with _explained(self.root, "written"):
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=".probe-") as probe:
                probe.write(b"x" * RUN_MARGIN_BYTES)
                probe.flush()
                os.fsync(probe.fileno())


class RunStore:
    """The records, events and logs of one run, below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def run_json(self) -> Path:
        """The run record's path."""
        return self.root / "run.json"

    @property
    def events_path(self) -> Path:
        """The training events, a JSON object in each line."""
        return self.root / "events.jsonl"

    def log_path(self, stage: str) -> Path:
        """Return where the whole output of a stage's jobs is kept."""
        return self.root / "logs" / f"{stage}.log"

    def stage_path(self, stage: str) -> Path:
        """Return the path of a stage's record."""
        return self.root / "stages" / f"{stage}.json"

    def write_run(self, record: RunRecord) -> None:
        """Replace the run record."""
        write_atomically(self.run_json, record.model_dump_json(indent=2))

    def read_run(self) -> RunRecord:
        """Read the run record.

        Raises:
            StoreError: There is none, or it cannot be read.
        """
        with _explained(self.run_json, "read"):
            return RunRecord.model_validate_json(self.run_json.read_text())

    def write_stage(self, record: StageRecord) -> None:
        """Replace a stage's record."""
        write_atomically(self.stage_path(record.stage), record.model_dump_json(indent=2))

    def read_stage(self, stage: str) -> StageRecord | None:
        """Read a stage's record; None where the stage has not begun."""
        path = self.stage_path(stage)
        with _explained(path, "read"):
            return StageRecord.model_validate_json(path.read_text()) if path.exists() else None

    def read_stages(self) -> list[StageRecord]:
        """Read the records of all stages that have begun, in the order of their beginning."""
        names = [path.stem for path in self.root.glob("stages/*.json")]
        records = [record for record in map(self.read_stage, names) if record]
        return sorted(records, key=lambda record: record.started_at)

    def log_size(self, stage: str) -> int:
        """Return how many bytes of the stage's output are kept."""
        path = self.log_path(stage)
        return path.stat().st_size if path.exists() else 0

    def append_log(self, stage: str, offset: int, chunk: bytes) -> int:
        """Keep a chunk of output that starts at byte ``offset``, and return the size after it.

        What is kept already is not written again, so that two readers of one job write each byte once.
        """
        path = self.log_path(stage)
        with _explained(path, "written"), _locked(path) as size:
            fresh = chunk[max(0, size - offset) :] if offset <= size else chunk
            with path.open("ab") as file:
                file.write(fresh)
            return size + len(fresh)

    def append_events(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Append the events that are new, and return them.

        A step, and an evaluation of a step, stands once, however many jobs went through it.
        """
        path = self.events_path
        with _explained(path, "written"), _locked(path):
            _drop_half_line(path)
            seen = {_identity(event) for event in self.read_events()}
            fresh = [event for event in _first_of_each(events) if _identity(event) not in seen]
            with path.open("a") as file:
                file.writelines(json.dumps(event) + "\n" for event in fresh)
            return fresh

    def read_events(self) -> list[dict[str, Any]]:
        """Read all events; a line still being written is left for the next read."""
        if not self.events_path.exists():
            return []
        lines = self.events_path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]


def safe_name(run_id: str) -> str:
    """Return a run id as a file name: Airflow's ids hold colons and plus signs."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run_id)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old text or the new, never a part."""
    with _explained(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".new-", delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except OSError:
                Path(file.name).unlink(missing_ok=True)
                raise


def _drop_half_line(path: Path) -> None:
    """Cut off what a killed writer, or a full disk, left of its last line."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _identity(event: dict[str, Any]) -> tuple[Any, ...]:
    if event["kind"] in ("step", "eval"):
        return event["kind"], event["step"]
    return event["kind"], event.get("job"), event.get("state")


def _first_of_each(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({_identity(event): event for event in reversed(events)}.values())[::-1]


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the file's lock; yields its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path.stat().st_size if path.exists() else 0


@contextmanager
def _explained(path: Path, verb: str) -> Iterator[None]:
    """Turn an error of the file system into a StoreError that says what to do."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be {verb}: {error}",
            resource=str(path),
            left="everything written before is intact",
            next_step="free disk space or mend the folder's permissions, then clear the failed stage",
        ) from error
