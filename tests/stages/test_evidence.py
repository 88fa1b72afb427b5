"""A stage's success is proved by what it left, never by its exit code alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import (
    ExportMismatch,
    MachineFault,
    PipelineError,
    QualityGateFailed,
    StageFailed,
    TrainingDiverged,
    TrainingIncomplete,
    TrainingStalled,
)
from finetune.stages.context import RunContext
from finetune.stages.evidence import find_verdict, is_committed, keep_training_events, prove
from tests.stages.conftest import Bench

STEPS = 10


@pytest.fixture
def context(bench: Bench) -> RunContext:
    """A run of ten steps of which nothing was done yet."""
    return bench.context()


def write_checkpoint(context: RunContext) -> None:
    """Write the last checkpoint, complete."""
    checkpoint = Path(context.plan.stage("train").outputs["checkpoint"])
    (checkpoint / "model_params").mkdir(parents=True)
    (checkpoint / "_CHECKPOINT_METADATA").write_text("{}")


def tell_steps(context: RunContext, last: int = STEPS, **changes: Any) -> None:
    """Put steps on record."""
    row = {"kind": "step", "loss": 2.0, "counted_tokens": 47.0, **changes}
    context.store.append_events([row | {"step": step} for step in range(1, last + 1)])


def prove_stage(context: RunContext, stage: str, exit_code: int = 0, log: str = "") -> dict[str, Any]:
    """Return what a stage's ended job proves."""
    log_path = context.store.log_path(f"{stage}-abc-1")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_text(log)
    return dict(prove(context, context.plan.stage(stage), exit_code, log_path).evidence)


def test_a_training_is_done_with_its_last_step_its_checkpoint_and_tokens_that_counted(
    context: RunContext,
) -> None:
    write_checkpoint(context)
    tell_steps(context)
    evaluation = {"kind": "eval", "step": STEPS, "loss": 2.5}
    context.store.append_events([evaluation])
    assert prove_stage(context, "train") == {
        "steps": 10,
        "first_loss": 2.0,
        "last_loss": 2.0,
        "counted_tokens": 470.0,
        "trainer_heldout_loss": 2.5,
    }


def spoil_last_step(context: RunContext) -> None:
    write_checkpoint(context)
    tell_steps(context, last=9)


def spoil_all_steps(context: RunContext) -> None:
    write_checkpoint(context)


def spoil_checkpoint(context: RunContext) -> None:
    tell_steps(context)


def spoil_tokens(context: RunContext) -> None:
    write_checkpoint(context)
    tell_steps(context, counted_tokens=0.0)


def spoil_loss(context: RunContext) -> None:
    write_checkpoint(context)
    tell_steps(context, loss=math.inf)


@pytest.mark.parametrize(
    ("spoil", "log", "said"),
    [
        (
            spoil_last_step,
            "x\nException in load_next_train_batch: StopIteration()\n",
            "its data ended early: Exception in load_next_train_batch: StopIteration()",
        ),
        (spoil_last_step, "", "it made 9 of 10 steps"),
        (spoil_all_steps, "", "it made 0 of 10 steps"),
        (spoil_checkpoint, "", "the checkpoint of step 10 is not complete: "),
        (spoil_tokens, "", "no token counted: every prompt is longer than trainer.max_target_length"),
        (spoil_loss, "", "a loss is not a finite number"),
    ],
)
def test_a_training_that_ended_well_without_having_trained_is_incomplete(
    context: RunContext, spoil: Callable[[RunContext], None], log: str, said: str
) -> None:
    spoil(context)
    with pytest.raises(TrainingIncomplete) as caught:
        prove_stage(context, "train", log=log)
    assert f"the trainer ended with exit code 0, but {said}" in caught.value.cause
    assert "its checkpoints, in" in str(caught.value.left)


def test_data_that_ended_with_the_last_step_were_enough(context: RunContext) -> None:
    write_checkpoint(context)
    tell_steps(context)
    log = "Exception in load_next_train_batch: StopIteration()\n"
    assert prove_stage(context, "train", log=log)["steps"] == STEPS


def test_all_that_is_wrong_with_a_training_is_said_at_once(context: RunContext) -> None:
    tell_steps(context, last=3, counted_tokens=0.0)
    with pytest.raises(TrainingIncomplete, match=r"3 of 10 steps; the checkpoint .*; no token counted"):
        prove_stage(context, "train")


@pytest.mark.parametrize("missing", ["model_params", "_CHECKPOINT_METADATA"])
def test_a_checkpoint_without_one_of_its_parts_is_not_complete(context: RunContext, missing: str) -> None:
    write_checkpoint(context)
    checkpoint = Path(context.plan.stage("train").outputs["checkpoint"])
    assert is_committed(checkpoint)
    part = checkpoint / missing
    part.rename(checkpoint / "other")
    assert not is_committed(checkpoint)


@pytest.mark.parametrize(
    ("stage", "log", "kind", "said"),
    [
        ("train", "ValueError: Column name ['x'] not in the dataset", StageFailed, "Column name ['x']"),
        ("train", "Aborting training due to NaN loss.", TrainingDiverged, "the loss is not a number"),
        ("convert_checkpoint", "Aborting training due to NaN loss.", StageFailed, "exit code 1"),
        ("train", "RESOURCE_EXHAUSTED: OCDBT", MachineFault, "the machine's disk is full"),
        ("install_trainer", "error: No space left on device (os error 28)", MachineFault, "disk is full"),
        ("export_checkpoint", "[finish_export] running\nmissing: x", ExportMismatch, "missing: x"),
        ("export_checkpoint", "[to_huggingface] running\nKilled", StageFailed, "Killed"),
    ],
)
def test_an_error_is_of_the_class_that_its_log_shows_and_quotes_it(
    context: RunContext, stage: str, log: str, kind: type[PipelineError], said: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        prove_stage(context, stage, exit_code=1, log=log)
    assert type(caught.value) is kind
    assert said in caught.value.cause
    assert caught.value.left
    assert caught.value.next_step
    assert str(caught.value.resource).endswith(f"logs/{stage}-abc-1.log")


def test_an_error_quotes_the_end_of_a_long_log_only(context: RunContext) -> None:
    with pytest.raises(StageFailed) as caught:
        prove_stage(context, "train", exit_code=2, log="\n".join(f"line {n}" for n in range(1000)))
    assert "line 999" in caught.value.cause
    assert "line 900" not in caught.value.cause


def test_a_job_that_made_nothing_has_failed_whatever_its_exit_code(context: RunContext) -> None:
    with pytest.raises(StageFailed, match="exit code 0 but did not make its output environment"):
        prove_stage(
            RunContext(context.recipe.model_copy(update={"store": f"{context.recipe.store}-empty"}), "x", {}),
            "install_trainer",
        )


def write_export(context: RunContext) -> None:
    """Write what an export leaves."""
    model = Path(context.plan.stage("export_checkpoint").outputs["model"])
    model.mkdir(parents=True)
    (model / "export_report.json").write_text(json.dumps({"tensors": 236}))


def test_an_export_is_proved_by_the_comparison_of_its_tensors(context: RunContext) -> None:
    write_export(context)
    assert prove_stage(context, "export_checkpoint") == {"tensors": 236}


def test_an_export_without_the_comparison_is_none(context: RunContext) -> None:
    with pytest.raises(StageFailed, match="did not make its output"):
        prove_stage(context, "export_checkpoint")


def write_evaluations(context: RunContext, before: float, after: float) -> None:
    """Write both evaluations."""
    for name, loss in (("before", before), ("after", after)):
        path = Path(context.plan.stage("check_model").outputs[name])
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = [{"prompt": "Who are you?", "answer": name, "stopped": name == "after"}]
        path.write_text(json.dumps({"loss": loss, "tokens": 100, "samples": samples}))


def test_a_better_model_is_proved_by_its_figures_and_answers(context: RunContext) -> None:
    write_evaluations(context, before=4.0, after=2.0)
    assert prove_stage(context, "check_model") == {
        "heldout_loss_before": 4.0,
        "heldout_loss_after": 2.0,
        "heldout_tokens": 100,
        "samples": [{"prompt": "Who are you?", "before": "before", "after": "after", "stopped": True}],
    }


@pytest.mark.parametrize("after", [4.01, math.nan, math.inf])
def test_a_model_that_got_worse_or_has_no_figure_passes_no_gate(context: RunContext, after: float) -> None:
    write_evaluations(context, before=4.0, after=after)
    with pytest.raises(QualityGateFailed) as caught:
        prove_stage(context, "check_model")
    assert f"from 4.0000 to {after:.4f}" in caught.value.cause
    assert "checks.min_heldout_improvement" in caught.value.cause
    assert f"{context.store.root}/model" in str(caught.value.left)
    assert "nothing was published" in str(caught.value.left)


def test_an_improvement_smaller_than_asked_for_is_none(bench: Bench) -> None:
    context = bench.context(min_heldout_improvement=0.5)
    write_evaluations(context, before=4.0, after=3.6)
    with pytest.raises(QualityGateFailed, match=r"at least 0\.5"):
        prove_stage(context, "check_model")


def test_a_gate_that_is_switched_off_lets_everything_pass(bench: Bench) -> None:
    context = bench.context(min_heldout_improvement=None)
    write_evaluations(context, before=4.0, after=4.5)
    assert prove_stage(context, "check_model")["heldout_loss_after"] == 4.5


@pytest.mark.parametrize(("state", "kind"), [("stalled", TrainingStalled), ("diverged", TrainingDiverged)])
def test_what_the_watch_found_of_this_very_job_is_its_error(
    context: RunContext, state: str, kind: type[PipelineError]
) -> None:
    verdict = {"kind": "verdict", "state": state, "detail": "no step for 5m 00s", "job": "train-abc-1"}
    context.store.append_events([verdict])
    found = find_verdict(context, context.store.log_path("train-abc-1"))
    assert type(found) is kind
    assert "no step for 5m 00s; the job was ended" in str(found)
    assert find_verdict(context, context.store.log_path("train-abc-2")) is None


def test_what_an_ended_training_wrote_is_on_record_whether_it_was_watched_or_not(context: RunContext) -> None:
    rows = [{"step": float(step), "learning/loss": 3.0} for step in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    tell_steps(context, last=1)
    keep_training_events(context, {"metrics.jsonl": text}.__getitem__)
    assert [(event["step"], event["loss"]) for event in context.store.read_events()] == [
        (1, 2.0),
        (2, 3.0),
        (3, 3.0),
    ]
