"""The tiny recipe through real Airflow and real MaxText, from nothing to a model that answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open

from finetune.demo.api import wait_for
from finetune.recipe import load_recipe
from finetune.settings import PROJECT_ROOT
from tests.e2e.conftest import PLANTED_TOKEN, RUN_SECONDS, Pipeline

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * RUN_SECONDS)]

STEPS = load_recipe(PROJECT_ROOT / "include" / "recipes" / "tiny-local.yaml").trainer.steps
STAGES = (
    "preflight",
    "create_machine",
    "install_trainer",
    "convert_checkpoint",
    "train",
    "export_checkpoint",
    "check_model",
    "delete_machine",
    "verdict",
)


# Long enough to be killed between two checkpoints.
LONG = {"steps": 150, "checkpoint_period": 30}


def steps_of(pipeline: Pipeline, run_id: str) -> list[int]:
    return [event["step"] for event in pipeline.store(run_id).read_events() if event["kind"] == "step"]


def read_tensors(directory: Path) -> dict[str, tuple[list[int], str]]:
    found = {}
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(name)
                found[name] = (part.get_shape(), part.get_dtype())
    return found


def test_every_stage_of_a_green_run_leaves_a_record_with_its_evidence(
    pipeline: Pipeline, first_run: str
) -> None:
    for name in STAGES:
        record = pipeline.stage(first_run, name)
        assert record.state == "done", f"{name}: {record.state} {record.error}"
        assert record.seconds is not None
    assert pipeline.stage(first_run, "train").evidence["steps"] == STEPS


def test_every_training_step_is_in_the_events_once_and_the_loss_falls(
    pipeline: Pipeline, first_run: str
) -> None:
    assert steps_of(pipeline, first_run) == list(range(1, STEPS + 1))
    losses = [event["loss"] for event in pipeline.store(first_run).read_events() if event["kind"] == "step"]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.3


def test_the_exported_model_has_the_sources_tensors_and_files_but_other_weights(
    pipeline: Pipeline, first_run: str
) -> None:
    source = Path(pipeline.stage(first_run, "convert_checkpoint").outputs["source_model"])
    model = Path(pipeline.stage(first_run, "export_checkpoint").outputs["model"])
    assert read_tensors(model) == read_tensors(source)
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        assert (model / name).read_bytes() == (source / name).read_bytes(), name
    assert pipeline.stage(first_run, "export_checkpoint").evidence["changed_tensors"] > 0
    assert (model / "model.safetensors").read_bytes() != (source / "model.safetensors").read_bytes()


def test_transformers_loads_the_exported_model_and_generates_from_it(
    pipeline: Pipeline, first_run: str, check_python: Path
) -> None:
    model = pipeline.stage(first_run, "export_checkpoint").outputs["model"]
    program = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
chat = [{"role": "user", "content": "How are you doing?"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=8, min_new_tokens=4, do_sample=False)
print(json.dumps({"new_tokens": output.shape[1] - inputs["input_ids"].shape[1], "missing": model.config.vocab_size}))
"""
    done = subprocess.run([check_python, "-c", program, model], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["new_tokens"] >= 4


def test_the_held_out_loss_measured_by_transformers_agrees_with_maxtexts(
    pipeline: Pipeline, first_run: str
) -> None:
    trainer = pipeline.stage(first_run, "train").evidence["trainer_heldout_loss"]
    independent = pipeline.stage(first_run, "check_model").evidence["heldout_loss_after"]
    assert trainer == pytest.approx(independent, rel=0.02)
    counted = [
        event["counted_tokens"]
        for event in pipeline.store(first_run).read_events()
        if event["kind"] == "eval"
    ]
    assert counted == [pipeline.stage(first_run, "check_model").evidence["heldout_tokens"]] * 2
    assert independent < pipeline.stage(first_run, "check_model").evidence["heldout_loss_before"]


def test_a_run_leaves_no_machine_and_no_process(pipeline: Pipeline, first_run: str) -> None:
    assert pipeline.machines() == []
    marked = [process for process in psutil.process_iter() if "maxtext" in " ".join(cmdline(process))]
    assert marked == []


def test_maxtext_does_not_end_other_peoples_processes(
    pipeline: Pipeline, first_run: str, stranger: psutil.Process
) -> None:
    assert stranger.is_running()
    assert stranger.status() != psutil.STATUS_ZOMBIE


def test_a_hub_token_in_airflows_environment_is_in_no_file_that_a_run_leaves(
    pipeline: Pipeline, first_run: str
) -> None:
    grep = [
        "grep",
        "--recursive",
        "--files-with-matches",
        "--text",
        "--exclude-dir=environments",
        PLANTED_TOKEN,
    ]
    found = subprocess.run([*grep, str(pipeline.home)], capture_output=True, text=True, check=False)
    assert found.stdout == ""
    assert found.returncode == 1, found.stderr


def test_a_stage_that_is_cleared_after_the_run_does_its_work_alone_and_leaves_no_machine(
    pipeline: Pipeline, first_run: str
) -> None:
    model = Path(pipeline.stage(first_run, "export_checkpoint").outputs["model"])
    before = (model / "model.safetensors").read_bytes()
    trained = pipeline.stage(first_run, "train")
    shutil.rmtree(model)
    pipeline.airflow.api.clear(
        pipeline.dag_id(first_run), first_run, ["export_checkpoint"], include_downstream=False
    )
    assert pipeline.wait(first_run) == "success", pipeline.explain(first_run)
    assert (model / "model.safetensors").read_bytes() == before
    assert pipeline.stage(first_run, "train") == trained
    assert pipeline.machines() == []


def test_a_training_killed_in_mid_run_goes_on_from_its_checkpoint_and_reuses_what_the_first_run_made(
    pipeline: Pipeline, first_run: str
) -> None:
    pipeline.trigger("killed", LONG)
    checkpoint = wait_for("a checkpoint", lambda: find_checkpoint(pipeline, "killed"), RUN_SECONDS)
    # MaxText writes a step's row after its checkpoint, one step late: a kill in between loses that row for good.
    wait_for(
        "a later step",
        lambda: max(steps_of(pipeline, "killed"), default=0) > int(checkpoint.name),
        RUN_SECONDS,
    )
    victims = [process for process in psutil.process_iter() if "train_sft" in " ".join(cmdline(process))]
    assert victims, f"the training ended before it could be killed, after {checkpoint}"
    for process in victims:
        os.kill(process.pid, signal.SIGKILL)
    assert pipeline.wait("killed") == "success", pipeline.explain("killed")
    for name in ("install_trainer", "convert_checkpoint"):
        assert pipeline.stage("killed", name).state == "reused"
    assert steps_of(pipeline, "killed") == list(range(1, LONG["steps"] + 1))
    job = pipeline.stage("killed", "train").job
    assert job is not None
    assert job.generation == 2
    assert pipeline.machines() == []


def find_checkpoint(pipeline: Pipeline, run_id: str) -> Path | None:
    """Return a checkpoint in the middle of the run, once it is complete."""
    pattern = "training-*/checkpoints/*/commit_success.txt"
    complete = [path.parent for path in pipeline.store(run_id).root.glob(pattern)]
    return next((path for path in complete if 1 < int(path.name) < LONG["steps"]), None)


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
