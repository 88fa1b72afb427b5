"""What a training reads: MaxText's arguments for each kind of dataset, and the held-out part as a file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune.layout import Layout, content_digest
from finetune.recipe import Recipe
from finetune.recipe.trainer import EvalSection, MaxTextSft
from finetune.steps import Step, command
from finetune.trainers import artifacts

# MaxText's default for packing_max_segments_per_sample: at most so many conversations in one sequence.
PACKED_CONVERSATIONS = 25


@dataclass(frozen=True)
class TrainingData:
    """The data of one run.

    Args:
        arguments: MaxText's arguments that name them.
        setup: Commands before the training, for what only the machine can count.
        heldout_file: JSON lines to measure with; None where nothing is held out.
        steps: What brings them to the machine.
        identity: What tells these data from others.
    """

    arguments: tuple[str, ...]
    setup: tuple[str, ...]
    heldout_file: str | None
    steps: tuple[Step, ...]
    identity: Any


def split_dir(layout: Layout) -> str:
    """Return where ``preflight`` writes the split of a dataset of files."""
    return f"{layout.run}/data"


def training_data(recipe: Recipe, layout: Layout, python: str) -> TrainingData:
    """Return the data of a run; ``python`` is the trainer's interpreter."""
    if recipe.dataset.source.hub is not None:
        return _hub_data(recipe, layout, python)
    step = artifacts.bundled_dataset(recipe, layout, python)
    folder = str(step.output) if step else split_dir(layout)
    heldout = f"{folder}/heldout.jsonl" if recipe.dataset.has_heldout() else None
    train_file = f"{folder}/train.jsonl"
    arguments = ["hf_path=json", f"hf_train_files={train_file}", "train_split=train", 'num_epoch="$epochs"']
    if heldout and recipe.trainer.eval:
        source = (f"hf_eval_files={heldout}", "hf_eval_split=train", _columns("eval", ["messages"]))
        arguments += _evaluation(recipe.trainer, recipe.trainer.eval, *source)
    identity = folder if step else recipe.dataset.model_dump(mode="json")
    return TrainingData(
        # Whatever columns the files have, preflight writes them as messages.
        tuple([*arguments, _columns("train", ["messages"])]),
        _count_epochs(recipe, train_file),
        heldout,
        (step,) if step else (),
        identity,
    )


def _hub_data(recipe: Recipe, layout: Layout, python: str) -> TrainingData:
    source = recipe.dataset.source
    arguments = [f"hf_path={source.hub}", f"train_split={source.train_split or 'train'}"]
    if source.subset:
        arguments.append(f"hf_name={source.subset}")
    heldout_step = None
    if source.heldout_split and recipe.trainer.eval:
        split = (f"hf_eval_split={source.heldout_split}", _columns("eval", recipe.dataset.columns))
        arguments += _evaluation(recipe.trainer, recipe.trainer.eval, *split)
    if source.heldout_split:
        heldout_step = _heldout_of_hub(recipe, layout, python)
    return TrainingData(
        tuple([*arguments, _columns("train", recipe.dataset.columns)]),
        (),
        heldout_step.output if heldout_step else None,
        (heldout_step,) if heldout_step else (),
        recipe.dataset.model_dump(mode="json"),
    )


def _heldout_of_hub(recipe: Recipe, layout: Layout, python: str) -> Step:
    source = recipe.dataset.source
    fetch = (
        "import sys, datasets; "
        "datasets.load_dataset(sys.argv[1], sys.argv[2] or None, split=sys.argv[3], revision=sys.argv[4] or None)"
        ".to_json(sys.argv[5])"
    )
    split = f"{source.heldout_split}[:{recipe.checks.heldout_examples}]"
    identity = [str(source.hub), source.subset or "", split, source.revision or ""]
    fetched = command(
        "env", "HF_HUB_OFFLINE=0", "HF_DATASETS_OFFLINE=0", python, "-c", fetch, *identity, '"$NEW"'
    )
    return Step("heldout", (fetched,), layout.cached("heldout", content_digest(identity)))


def _evaluation(trainer: MaxTextSft, evaluation: EvalSection, *source: str) -> list[str]:
    """Return the arguments of MaxText's evaluations: one before the first step, one after the last."""
    return [
        *source,
        f"eval_interval={trainer.steps}",
        f"eval_steps={evaluation.steps or -1}",
        f"eval_per_device_batch_size={evaluation.per_device_batch_size or trainer.per_device_batch_size}",
        # Without a worker process, only the first evaluation sees the whole held-out part.
        "grain_worker_count=1",
    ]


def _columns(part: str, columns: Sequence[str]) -> str:
    return f"{part}_data_columns=[{','.join(map(repr, columns))}]"


def _count_epochs(recipe: Recipe, train_file: str) -> tuple[str, ...]:
    """Return the commands that count how often the data must be gone through, so that they never run out.

    MaxText ends a training whose data ran out early, with exit code 0.
    """
    trainer = recipe.trainer
    packed = PACKED_CONVERSATIONS if trainer.options.get("packing", True) else 1
    # MaxText asks for one batch more than it trains on.
    needed = (trainer.steps + 1) * trainer.per_device_batch_size * packed
    return (
        f"rows=$(wc -l < {shlex.quote(train_file)})",
        'test "$rows" -gt 0 || { echo "no conversation to train on in ' + train_file + '"; exit 1; }',
        f"epochs=$(( ({needed} + rows - 1) / rows ))",
    )
