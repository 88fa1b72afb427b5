"""Proof that a stage did its work: what must be there besides an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from finetune.plan import Stage
from finetune.progress.events import MetricsReader
from finetune.stages.context import RunContext
from finetune.trainers.maxtext import METRICS_FILE

TAIL_LINES = 25
DATA_RAN_OUT = "Exception in load_next_train_batch"
DISK_FULL = ("No space left on device", "RESOURCE_EXHAUSTED", "ENOSPC")

ReadFile = Callable[[str], bytes]


@dataclass(frozen=True)
class Proof:
    """The figures that show a stage's success."""

    evidence: Mapping[str, Any]


def prove(context: RunContext, stage: Stage, exit_code: int, log_path: Path) -> Proof:
    """Return the proof that an ended job did its stage's work.

    Args:
        context: The run.
        stage: The stage.
        exit_code: The job's exit code.
        log_path: The job's whole output.

    Raises:
        PipelineError: It did not; the error says what was seen.
    """
    log = log_path.read_text(errors="replace") if log_path.exists() else ""
    if exit_code != 0:
        raise explain_failure(stage, exit_code, log, log_path)
    provers: dict[str, Callable[[], dict[str, Any]]] = {
        "train": lambda: prove_training(context, stage, log, log_path),
        "export_checkpoint": lambda: prove_export(stage),
        "check_model": lambda: prove_quality(context, stage),
    }
    if stage.name != "train":  # whose proof says more of a missing checkpoint
        _require_outputs(stage, log_path)
    return Proof(provers[stage.name]() if stage.name in provers else {})


def _require_outputs(stage: Stage, log_path: Path) -> None:
    for name, path in stage.outputs.items():
        if not Path(path).exists():
            raise StageFailed(
                f"the job ended with exit code 0 but did not make its output {name}: {path}",
                resource=str(log_path),
                left="what the stages before it made is in the store",
                next_step=f"read {log_path}, mend the cause, then clear the task",
            )


def explain_failure(stage: Stage, exit_code: int, log: str, log_path: Path) -> PipelineError:
    """Return the error for a job that ended with an error of its own."""
    tail = "\n".join(log.splitlines()[-TAIL_LINES:])
    cause = f"the job ended with exit code {exit_code}. Its last lines:\n{tail}"
    if any(words in log for words in DISK_FULL):
        return MachineFault(
            f"the machine's disk is full. {cause}",
            resource=str(log_path),
            left="checkpoints that were complete are intact",
            next_step="free disk space on the machine or in the store, then clear the task",
        )
    if stage.name == "train" and "NaN loss" in log:
        return TrainingDiverged(
            f"the loss is not a number. {cause}",
            resource=str(log_path),
            left="the checkpoints before it",
            next_step="lower the learning rate, then trigger a new run",
        )
    if stage.name == "export_checkpoint" and "[finish_export] running" in log:
        return ExportMismatch(
            f"the exported model is not like its source. {cause}",
            resource=str(log_path),
            left="the trained checkpoint; nothing was published",
            next_step="check the recipe's model section against the source's config.json",
        )
    return StageFailed(
        cause,
        resource=str(log_path),
        left="what the stages before it made is in the store",
        next_step=f"read {log_path}, mend the cause, then clear the task",
    )


def keep_training_events(context: RunContext, read_file: ReadFile) -> None:
    """Put on record what an ended training's metrics say, seen by the watch or not.

    Args:
        context: The run.
        read_file: Reads a file of the job's own directory on the machine.
    """
    reader = MetricsReader(context.recipe.trainer.steps)
    context.store.append_events(reader.feed(read_file(METRICS_FILE)))


def prove_training(context: RunContext, stage: Stage, log: str, log_path: Path) -> dict[str, Any]:
    """Return a training's figures: the last step reached, its checkpoint committed, tokens that counted."""
    steps = context.recipe.trainer.steps
    trained = [event for event in context.store.read_events() if event["kind"] == "step"]
    last = max((event["step"] for event in trained), default=0)
    checkpoint = Path(stage.outputs["checkpoint"])
    problems = _training_problems(steps, last, trained, checkpoint, log)
    if problems:
        raise TrainingIncomplete(
            "the trainer ended with exit code 0, but " + "; ".join(problems),
            resource=str(log_path),
            left=f"its checkpoints, in {checkpoint.parent}",
            next_step=f"read {log_path}, mend the cause, then clear the task",
        )
    evaluations = [event for event in context.store.read_events() if event["kind"] == "eval"]
    return {
        "steps": last,
        "first_loss": trained[0]["loss"],
        "last_loss": trained[-1]["loss"],
        "counted_tokens": sum(event["counted_tokens"] or 0 for event in trained),
        "trainer_heldout_loss": evaluations[-1]["loss"] if evaluations else None,
    }


def _training_problems(
    steps: int, last: int, trained: list[dict[str, Any]], checkpoint: Path, log: str
) -> list[str]:
    problems = []
    if last < steps and DATA_RAN_OUT in log:
        line = next(line for line in log.splitlines() if DATA_RAN_OUT in line)
        problems.append(f"its data ended early: {line.strip()}")
    if last < steps:
        problems.append(f"it made {last} of {steps} steps")
    if not is_committed(checkpoint):
        problems.append(f"the checkpoint of step {steps} is not complete: {checkpoint}")
    if any(not math.isfinite(event["loss"]) for event in trained):
        problems.append("a loss is not a finite number")
    if trained and not any(event["counted_tokens"] for event in trained):
        problems.append("no token counted: every prompt is longer than trainer.max_target_length")
    return problems


def is_committed(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (checkpoint / "model_params").is_dir() and (checkpoint / "_CHECKPOINT_METADATA").exists()


def prove_export(stage: Stage) -> dict[str, Any]:
    """Return the comparison of the exported tensors with the source's."""
    report = Path(stage.outputs["model"]) / "export_report.json"
    content: dict[str, Any] = json.loads(report.read_text())
    return content


def prove_quality(context: RunContext, stage: Stage) -> dict[str, Any]:
    """Return the model's figures before and after, and hold them against the recipe's checks."""
    before, after = (json.loads(Path(stage.outputs[name]).read_text()) for name in ("before", "after"))
    samples = [
        {"prompt": old["prompt"], "before": old["answer"], "after": new["answer"], "stopped": new["stopped"]}
        for old, new in zip(before["samples"], after["samples"], strict=True)
    ]
    evidence = {
        "heldout_loss_before": before["loss"],
        "heldout_loss_after": after["loss"],
        "heldout_tokens": after["tokens"],
        "samples": samples,
    }
    wanted = context.recipe.checks.min_heldout_improvement
    if wanted is not None and not before["loss"] - after["loss"] >= wanted:
        raise QualityGateFailed(
            f"the held-out loss went from {before['loss']:.4f} to {after['loss']:.4f}; the recipe asks for an"
            f" improvement of at least {wanted} (checks.min_heldout_improvement)",
            resource=stage.outputs["after"],
            left=f"the model, in {context.plan.stage('export_checkpoint').outputs['model']}; nothing was published",
            next_step="train longer or with another learning rate, or change the check",
        )
    return evidence


def find_verdict(context: RunContext, log_path: Path) -> PipelineError | None:
    """Return what the watch of the training found, if it ended this very job."""
    verdicts = [event for event in context.store.read_events() if event["kind"] == "verdict"]
    if not verdicts or verdicts[-1]["job"] != log_path.stem:
        return None
    kind = {"stalled": TrainingStalled, "diverged": TrainingDiverged}[verdicts[-1]["state"]]
    return kind(
        f"{verdicts[-1]['detail']}; the job was ended",
        resource=str(log_path),
        left="the checkpoints before it",
        next_step=f"read the end of {log_path}, mend the cause, then clear the task",
    )
