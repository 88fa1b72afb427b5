"""A local machine is made once, keeps to itself, and is gone when it is deleted."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from finetune.errors import MachineFault, MachineLost
from finetune.machines.base import HALF_MADE, MachineRecord, MachineSpec
from finetune.machines.local import LocalMachineProvider
from finetune.machines.processes import MARK, build_mark

TPU, CPU = MachineSpec("tpu", "local"), MachineSpec("cpu", "local")
FAMILY = 'sleep 1001 & setsid sleep 1002 & (setsid nohup sleep 1003 &); echo > "$READY"; sleep 1004'


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait until a condition holds; fail with its name when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {seconds} s: {what}")
        time.sleep(0.02)


def start_family(provider: LocalMachineProvider, record: MachineRecord, *, isolate: bool = True) -> None:
    """Start a job with children in sessions of their own, and wait until they run."""
    ready = Path(record.root) / "ready"
    provider.jobs(record).start("train", "d", FAMILY, {"READY": str(ready)}, isolate)
    wait_for(ready.exists, "the job runs")


def find_sleepers(record: MachineRecord) -> list[psutil.Process]:
    """Return the live processes of a machine's jobs, asked of the kernel and not of the provider."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARK) == build_mark(record.name, record.incarnation):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def labels() -> dict[str, str]:
    """The labels of a run that no other test has."""
    return {"recipe": "tiny-local", "run": f"manual__{uuid.uuid4().hex}", "owner": "ada"}


@contextlib.contextmanager
def running(argv: list[str], mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that carries a machine's mark, and kill it afterwards."""
    environment = {MARK: mark, "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def planted(labels: dict[str, str], provider: LocalMachineProvider) -> Iterator[subprocess.Popen[bytes]]:
    """A process that an earlier, vanished machine of the run left behind."""
    name = provider.create(TPU, labels).name
    [record] = provider.find(labels)
    provider.delete(record)
    with running(["sleep", "1009"], build_mark(name, "earlier")) as process:
        yield process


def test_create_makes_a_machine_once(provider: LocalMachineProvider, labels: dict[str, str]) -> None:
    record = provider.create(TPU, labels)
    assert provider.create(TPU, labels) == record
    assert provider.exists(record)
    assert provider.find(labels) == [record]
    assert record.labels == {**labels, "role": "tpu"}
    assert Path(record.root).is_dir()
    assert MachineRecord.model_validate_json(record.model_dump_json()) == record


def test_many_creates_at_once_make_one_machine(
    provider: LocalMachineProvider, base_dir: Path, labels: dict[str, str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda _: LocalMachineProvider(base_dir).create(TPU, labels), range(16)))
    assert len({record.incarnation for record in records}) == 1
    assert len(list(base_dir.iterdir())) == 1


def test_each_role_and_each_run_has_a_machine_of_its_own(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    other_run = {**labels, "run": labels["run"] + "x"}
    records = [provider.create(TPU, labels), provider.create(CPU, labels), provider.create(TPU, other_run)]
    assert len({record.root for record in records}) == 3
    assert {record.role for record in provider.find(labels)} == {"tpu", "cpu"}
    assert provider.find({**labels, "role": "cpu"}) == [records[1]]
    assert provider.find({"owner": "nobody"}) == []
    assert len(provider.find({"owner": "ada"})) == 3


@pytest.mark.parametrize("isolate", [True, False], ids=["in-a-namespace", "without-namespace"])
def test_delete_leaves_no_process_and_no_directory(
    provider: LocalMachineProvider, base_dir: Path, labels: dict[str, str], isolate: bool
) -> None:
    record = provider.create(TPU, labels)
    start_family(provider, record, isolate=isolate)
    assert len(find_sleepers(record)) >= 4

    report = provider.delete(record)

    assert find_sleepers(record) == []
    assert list(base_dir.iterdir()) == []
    assert provider.leftovers(labels) == []
    assert report.deleted == ["job train (generation 1)", f"directory {record.root}"]
    assert provider.delete(record).deleted == []


def test_delete_ends_what_a_job_did_not_start_but_carries_the_machines_mark(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    record = provider.create(TPU, labels)
    ignore = "trap '' TERM; echo ready; while :; do sleep 1000; done"
    with running(["sh", "-c", ignore], build_mark(record.name, record.incarnation)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        report = provider.delete(record)
        assert process.wait(30) == -9
    assert any(f"process {process.pid}" in line for line in report.deleted)


def test_the_machine_of_another_run_goes_on(provider: LocalMachineProvider, labels: dict[str, str]) -> None:
    mine = provider.create(TPU, labels)
    other = provider.create(TPU, {**labels, "run": labels["run"] + "x"})
    start_family(provider, mine)
    start_family(provider, other)
    before = {process.pid for process in find_sleepers(other)}

    provider.delete(mine)

    assert provider.exists(other)
    assert {process.pid for process in find_sleepers(other)} == before
    [entry] = provider.jobs(other).list()
    assert entry.status.state == "running"


def test_a_later_incarnation_is_spared(provider: LocalMachineProvider, labels: dict[str, str]) -> None:
    first = provider.create(TPU, labels)
    provider.delete(first)
    second = provider.create(TPU, labels)
    start_family(provider, second)
    before = len(find_sleepers(second))

    assert not provider.exists(first)
    assert provider.delete(first).deleted == []

    assert provider.exists(second)
    assert len(find_sleepers(second)) == before


def test_leftovers_names_a_process_that_outlived_its_machine(
    provider: LocalMachineProvider, labels: dict[str, str], planted: subprocess.Popen[bytes]
) -> None:
    assert provider.leftovers(labels) == [f"process {planted.pid} (sleep 1009)"]
    assert provider.leftovers({**labels, "role": "tpu"}) == [f"process {planted.pid} (sleep 1009)"]
    assert provider.leftovers({**labels, "role": "cpu"}) == []
    assert provider.leftovers({**labels, "run": "another"}) == []
    planted.kill()
    planted.wait()
    assert provider.leftovers(labels) == []


def test_leftovers_names_the_directory_and_the_processes_of_a_machine_that_was_not_deleted(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    record = provider.create(TPU, labels)
    assert provider.leftovers(labels) == [f"directory {record.root}"]
    start_family(provider, record)
    wait_for(lambda: "sleep 1004" in str(provider.leftovers(labels)), "the job's process is named")


def test_a_half_made_machine_is_found_named_and_deleted(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    root = make_half_made(provider, labels)

    [record] = provider.find(labels)
    assert (record.incarnation, provider.exists(record)) == (HALF_MADE, False)
    assert provider.leftovers(labels) == [f"directory {root}"]

    assert provider.delete(record).deleted == [f"directory {root}"]
    assert not root.exists()


def test_a_half_made_machine_is_emptied_and_made_anew_by_create(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    root = make_half_made(provider, labels)
    with running(["sleep", "1009"], build_mark(root.name, "earlier")) as stray:
        record = provider.create(TPU, labels)
        assert stray.wait(30) == -15
    assert provider.exists(record)
    assert [path.name for path in root.iterdir()] == ["machine.json"]


def make_half_made(provider: LocalMachineProvider, labels: dict[str, str]) -> Path:
    """Leave what a delete leaves that was killed half way, and return its directory."""
    root = Path(provider.create(TPU, labels).root)
    (root / "jobs" / "train").mkdir(parents=True)
    (root / "machine.json").unlink()
    return root


def test_a_record_that_was_cut_short_counts_as_half_made(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    record = provider.create(TPU, labels)
    file = Path(record.root) / "machine.json"
    file.write_text(file.read_text()[:40])
    assert not provider.exists(record)
    anew = provider.create(TPU, labels)
    assert anew.incarnation != record.incarnation
    assert json.loads(file.read_text())["incarnation"] == anew.incarnation


def test_creates_and_deletes_at_once_end_with_a_whole_machine_or_none(
    base_dir: Path, labels: dict[str, str]
) -> None:
    def create_and_delete(_: int) -> None:
        provider = LocalMachineProvider(base_dir)
        provider.delete(provider.create(TPU, labels))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_and_delete, range(40)))
    provider = LocalMachineProvider(base_dir)
    assert provider.leftovers(labels) == []
    assert provider.exists(provider.create(TPU, labels))


def test_a_job_on_a_deleted_machine_says_that_the_machine_is_lost(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    record = provider.create(TPU, labels)
    provider.delete(record)
    with pytest.raises(MachineLost):
        provider.jobs(record).start("train", "d", "exit 0", {})
    assert provider.leftovers(labels) == []


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path: Path, labels: dict[str, str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(MachineFault, match="cannot be made") as caught:
        LocalMachineProvider(blocked / "machines").create(TPU, labels)
    assert str(blocked / "machines") in str(caught.value.resource)
    assert "FINETUNE_HOME" in str(caught.value.next_step)


def test_a_machine_whose_folder_was_removed_by_hand_is_deleted_with_its_processes(
    provider: LocalMachineProvider, labels: dict[str, str]
) -> None:
    record = provider.create(TPU, labels)
    start_family(provider, record)
    shutil.rmtree(record.root)
    provider.delete(record)
    assert find_sleepers(record) == []


def test_two_runs_whose_names_read_alike_never_share_a_machine(provider: LocalMachineProvider) -> None:
    runs = ["scheduled__2026-01-01T00:00:00+00:00", "scheduled__2026-01-01T00:00:00.1+00:00", "ü", "Ü", "--"]
    names = [provider.create(TPU, {"recipe": "a" * 100, "run": run}).name for run in runs]
    assert len(set(names)) == len(runs)
    assert max(len(name) for name in names) <= 63
    assert "scheduled-2026-01-01t" in names[0]
