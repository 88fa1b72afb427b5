"""The store: records are seen whole, events and logs only grow and hold everything once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import StoreError
from finetune.store import RunRecord, RunStore, StageRecord, Store
from finetune.store.store import safe_name, write_atomically

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    """An empty run."""
    return Store(f"file://{tmp_path}").run("small", "one")


def step(number: int, loss: float = 2.0) -> dict[str, Any]:
    """Return the event of a step."""
    return {"kind": "step", "step": number, "loss": loss}


def stage(name: str, text: str = "") -> StageRecord:
    """Return a record."""
    return StageRecord(stage=name, state="done", digest="d", started_at=STARTED, reason=text)


def test_an_event_stands_once_however_often_it_is_told(run: RunStore) -> None:
    assert run.append_events([step(1), step(2)]) == [step(1), step(2)]
    assert run.append_events([step(1), step(2), step(3)]) == [step(3)]
    assert run.append_events([step(3)]) == []
    assert run.read_events() == [step(1), step(2), step(3)]


def test_of_a_step_told_twice_in_one_breath_the_first_stands(run: RunStore) -> None:
    run.append_events([step(1, loss=5.0), step(1, loss=4.0)])
    assert run.read_events() == [step(1, loss=5.0)]


def test_an_evaluation_of_a_step_is_not_that_step(run: RunStore) -> None:
    evaluation = {"kind": "eval", "step": 1, "loss": 3.0}
    run.append_events([step(1), evaluation])
    assert run.read_events() == [step(1), evaluation]


def test_each_job_has_a_verdict_of_its_own(run: RunStore) -> None:
    first, second = ({"kind": "verdict", "state": "stalled", "job": f"train-{n}"} for n in (1, 2))
    run.append_events([first, first, second])
    assert run.read_events() == [first, second]


def test_a_run_without_events_has_none(run: RunStore) -> None:
    assert run.read_events() == []


def test_a_loss_that_is_no_number_survives_the_store(run: RunStore) -> None:
    run.append_events([step(1, loss=float("nan"))])
    assert str(run.read_events()[0]["loss"]) == "nan"


def test_a_line_that_a_killed_writer_left_half_is_not_read_and_not_continued(run: RunStore) -> None:
    run.append_events([step(1)])
    with run.events_path.open("a") as file:
        file.write('{"kind": "step", "st')
    assert run.read_events() == [step(1)]
    assert run.append_events([step(2)]) == [step(2)]
    assert run.read_events() == [step(1), step(2)]


def _append_steps(root: Path, numbers: list[int], start: Any) -> None:
    start.wait()
    for number in numbers:
        RunStore(root).append_events([step(number)])


def test_two_processes_that_tell_the_same_events_write_each_once(run: RunStore) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    numbers = list(range(1, 61))
    writers = [spawn.Process(target=_append_steps, args=(run.root, numbers, start)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert sorted(event["step"] for event in run.read_events()) == numbers


def test_a_log_chunk_that_overlaps_what_is_kept_adds_only_the_rest(run: RunStore) -> None:
    assert run.append_log("train", 0, b"one\ntwo\n") == 8
    assert run.append_log("train", 0, b"one\ntwo\n") == 8
    assert run.append_log("train", 4, b"two\nthree\n") == 14
    assert run.log_path("train").read_bytes() == b"one\ntwo\nthree\n"
    assert run.log_size("train") == 14


def test_nothing_is_kept_of_a_log_before_its_first_chunk(run: RunStore) -> None:
    assert run.log_size("train") == 0


def _append_log(root: Path, text: bytes, pieces: list[int], start: Any) -> None:
    start.wait()
    store = RunStore(root)
    while (offset := store.log_size("train")) < len(text):
        store.append_log("train", offset, text[offset : offset + pieces[offset % len(pieces)]])


def test_two_readers_of_one_job_write_each_byte_once(run: RunStore) -> None:
    text = b"".join(b"line %d\n" % number for number in range(2000))
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    readers = [
        spawn.Process(target=_append_log, args=(run.root, text, pieces, start)) for pieces in ([97, 5], [61])
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0]
    assert run.log_path("train").read_bytes() == text


def test_a_record_comes_back_as_it_was_written(run: RunStore) -> None:
    run.write_stage(stage("train", "first"))
    run.write_stage(stage("train", "second"))
    assert run.read_stage("train") == stage("train", "second")
    assert run.read_stage("export_checkpoint") is None


def test_records_are_listed_in_the_order_of_their_beginning(run: RunStore) -> None:
    later = stage("a").model_copy(update={"started_at": STARTED.replace(hour=9)})
    run.write_stage(later)
    run.write_stage(stage("b"))
    assert [record.stage for record in run.read_stages()] == ["b", "a"]


def _replace_forever(path: Path, ready: Any) -> None:
    for number in range(1_000_000):
        write_atomically(path, json.dumps({"number": number, "padding": "x" * 100_000}))
        ready.set()


def test_a_reader_sees_the_old_record_or_the_new_also_when_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    writer = spawn.Process(target=_replace_forever, args=(path, ready))
    writer.start()
    assert ready.wait(60)
    seen: set[int] = set()
    while len(seen) < 20:
        seen.add(json.loads(path.read_text())["number"])
    writer.kill()
    writer.join()
    assert len(json.loads(path.read_text())["padding"]) == 100_000


def test_a_record_that_cannot_be_written_leaves_the_old_one_and_no_scrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=rf"{tmp_path}/file/store cannot be written: .*Not a directory"):
        Store(f"file://{tmp_path}/file/store").check_writable()


def test_a_writable_store_keeps_no_trace_of_the_check(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/store").check_writable()
    assert list((tmp_path / "store").iterdir()) == []


def test_a_broken_record_is_named_with_what_is_wrong(run: RunStore) -> None:
    run.stage_path("train").parent.mkdir(parents=True)
    run.stage_path("train").write_text('{"stage": "train"')
    with pytest.raises(StoreError, match=r"train\.json cannot be read: "):
        run.read_stage("train")


@pytest.mark.parametrize("url", ["gs://bucket/folder", "s3://bucket", "relative/folder"])
def test_a_store_of_another_kind_is_refused_before_anything_is_created(url: str) -> None:
    with pytest.raises(StoreError, match=f"'{url}' cannot be opened"):
        Store(url)


def test_runs_are_listed_the_newest_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for day, run_id in ((1, "old"), (3, "new"), (2, "middle")):
        record = RunRecord(
            recipe_name="small",
            run_id=run_id,
            started_at=STARTED.replace(day=day),
            recipe={},
            recipe_digest="",
            params={},
            versions={},
        )
        store.run("small", run_id).write_run(record)
    store.run("other", "unfinished").append_events([step(1)])
    assert [run.read_run().run_id for run in store.runs()] == ["new", "middle", "old"]
    assert store.runs("other") == []


def test_ids_of_airflows_runs_become_file_names() -> None:
    assert safe_name("scheduled__2026-01-02T03:04:05+00:00") == "scheduled__2026-01-02T03-04-05-00-00"
