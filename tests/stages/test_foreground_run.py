"""A whole run without Airflow, with the stand-in trainer: what it leaves, what it reuses, what a failure costs."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uv

from finetune import settings
from finetune.errors import JobLost, StageFailed
from finetune.foreground import run_recipe
from finetune.stages.context import RunContext
from tests.fakes.trainer import FakeTrainer
from tests.stages.conftest import Bench, open_workshop

STAGES = ["install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model"]
ALL_RECORDS = ["preflight", "create_machine", *STAGES, "delete_machine", "verdict"]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, str]]:
    """A bench on which two runs went well, and what was said of the second."""
    with open_workshop(tmp_path_factory.mktemp("two-runs")) as make_bench:
        bench = make_bench()
        bench.run("one", steps=7)
        yield bench, "\n".join(bench.run("two"))


def test_a_run_leaves_a_record_of_every_stage_a_model_and_no_machine(two_runs: tuple[Bench, str]) -> None:
    bench, _ = two_runs
    records = bench.store().read_stages()
    assert [record.stage for record in records] == ALL_RECORDS
    assert all(record.succeeded and record.error is None for record in records)
    for record in records:
        assert all(Path(path).exists() for path in record.outputs.values()), record.stage
    assert bench.steps() == [1, 2, 3, 4, 5, 6, 7]
    train = bench.stage("train").evidence
    assert (train["steps"], train["counted_tokens"]) == (7, 7 * 47)
    assert train["first_loss"] > train["last_loss"]
    model = Path(bench.stage("export_checkpoint").outputs["model"])
    assert (model / "model.safetensors").read_text() == "trained for 7 steps"
    check = bench.stage("check_model").evidence
    assert (check["heldout_loss_before"], check["heldout_loss_after"]) == (4.0, 2.0)
    assert check["samples"] == [
        {"prompt": "Who are you?", "before": "random", "after": "trained for 7 steps", "stopped": True}
    ]
    run = bench.store().read_run()
    assert run.params == {"steps": 7}
    assert run.recipe["trainer"]["steps"] == 7
    assert bench.machines() == []
    assert bench.processes() == []


def test_a_second_run_trains_anew_but_reuses_environment_and_conversion_and_says_so(
    two_runs: tuple[Bench, str],
) -> None:
    bench, said = two_runs
    assert "== install_trainer\n   reused: the same was made by an earlier run" in said
    assert "== convert_checkpoint\n   reused: the same was made by an earlier run" in said
    assert [bench.stage(stage, "two").state for stage in STAGES] == [
        "reused",
        "reused",
        "done",
        "done",
        "done",
    ]
    assert len(bench.trainer.calls("convert")) == 1
    assert [call["resumed"] for call in bench.trainer.calls("train")] == [0, 0]
    assert bench.steps("two") == list(range(1, 11))


def test_the_source_is_measured_once_for_all_runs(two_runs: tuple[Bench, str]) -> None:
    bench, _ = two_runs
    assert len([call for call in bench.trainer.calls("evaluate") if "/runs/" not in call["model"]]) == 1
    assert bench.stage("check_model", "two").evidence["heldout_loss_before"] == 4.0


def test_the_recipe_that_ships_installs_builds_converts_and_trains(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for uv, too, which makes stand-in environments."""
    trainer = FakeTrainer(tmp_path / "control")
    trainer.write_environment(tmp_path / "environment")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(
        "#!/bin/bash\n"
        f'echo "$*" >> {tmp_path}/uv.log\n'
        f'if [ "$1" = venv ]; then cp -r {tmp_path}/environment "${{@: -1}}"; fi\n'
    )
    (folder / "uv").chmod(0o755)
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(folder / "uv"))
    make_bench()  # its settings and its clean-up
    shipped = settings.INCLUDE_DIR / "recipes" / "tiny-local.yaml"
    context = RunContext.load(shipped, f"shipped-{tmp_path.name}", {"steps": 2})
    run_recipe(context, print)
    states = {record.stage: record.state for record in context.store.read_stages()}
    assert states == dict.fromkeys(ALL_RECORDS, "done")
    commands = [
        call["command"]
        for call in map(json.loads, (trainer.control / "journal.jsonl").read_text().splitlines())
    ]
    assert commands == [
        "version",
        "build_dataset",
        "build_model",
        "convert",
        "build_dataset",
        "train",
        "export",
        "finish_export",
        "evaluate",
        "evaluate",
    ]
    log = (tmp_path / "uv.log").read_text()
    assert f"--require-hashes --requirements {settings.REQUIREMENTS_DIR}/chatterbot.txt" in log
    assert f"--requirements {settings.REQUIREMENTS_DIR}/maxtext-0.2.5-cpu.txt" in log


def test_a_failed_run_leaves_no_machine_and_goes_on_from_the_failed_stage(bench: Bench) -> None:
    bench.trainer.set(fail={"export": "ValueError: no such tensor"})
    with pytest.raises(StageFailed) as caught:
        bench.run()
    text = str(caught.value)
    assert text.startswith(
        "StageFailed in export_checkpoint: the job ended with exit code 1. Its last lines:"
    )
    assert "ValueError: no such tensor" in text
    assert "Left behind: what the stages before it made is in the store" in text
    assert "then clear the task" in text
    assert bench.stage("export_checkpoint").error == text
    assert bench.stage("export_checkpoint").state == "failed"
    assert bench.store().read_stage("check_model") is None
    assert bench.machines() == []
    assert bench.processes() == []
    bench.trainer.mend()
    said = "\n".join(bench.run())
    assert "== train\n   done: this run has done it already" in said
    assert len(bench.trainer.calls("train")) == 1
    assert bench.stage("export_checkpoint").state == "done"
    assert bench.stage("export_checkpoint").error is None


def test_a_job_that_is_killed_once_is_tried_again_from_the_last_checkpoint(
    bench: Bench, in_background: Callable[..., object], wait_until: Callable[..., None]
) -> None:
    bench.trainer.set(hold_at_step=8)
    run = in_background(bench.run)
    wait_until(lambda: bench.steps()[-1:] == [7], "the seventh step")
    bench.kill_trainer()
    bench.trainer.mend()
    run.join()
    assert [call["resumed"] for call in bench.trainer.calls("train")] == [0, 5]
    assert bench.steps() == list(range(1, 11))
    assert bench.stage("train").job.generation == 2


def test_a_job_that_is_killed_each_time_fails_the_run(
    bench: Bench, in_background: Callable[..., object], wait_until: Callable[..., None]
) -> None:
    bench.trainer.set(hold_at_step=2)
    run = in_background(bench.run)
    for attempt in (1, 2, 3):
        wait_until(lambda tries=attempt: len(bench.trainer.calls("train")) == tries, f"training {attempt}")
        bench.kill_trainer()
    with pytest.raises(JobLost, match="killed from outside"):
        run.join()
    assert bench.machines() == []


def test_an_interruption_ends_the_job_and_the_machine(
    bench: Bench, start_cli: Callable[..., object], wait_until: Callable[..., None]
) -> None:
    bench.trainer.set(hold_at_step=3)
    run = start_cli("run", bench.recipe_path.stem, "--run-id", "one")
    wait_until(lambda: bench.steps() == [1, 2], "the second step")
    assert bench.processes()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "stopped: the run's machines and jobs are gone; its records are in the store" in errors
    assert bench.processes() == []
    assert bench.machines() == []
    assert bench.stage("train").state == "failed"
    assert "the stage was stopped: interrupted" in bench.stage("train").error
