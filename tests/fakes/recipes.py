"""Recipes whose runs take seconds: a source model and a dataset made on the spot, and the stand-in trainer."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finetune.recipe import Recipe, load_recipe
from tests.fakes.trainer import FakeTrainer

STEPS = 10
CHECKPOINT_PERIOD = 5
DIALOGUES = 60


def write_source_model(folder: Path) -> Path:
    """Write what preflight takes for a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("random")
    return folder


def write_dialogues(path: Path) -> Path:
    """Write short dialogues, a JSON object in each line."""
    turns = [
        ({"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"{i}."})
        for i in range(DIALOGUES)
    ]
    path.write_text("".join(json.dumps({"messages": list(pair)}) + "\n" for pair in turns))
    return path


def write_recipe(folder: Path, name: str, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a recipe of ten steps, with changes by dotted path, and what it names beside it."""
    inputs = folder.parent / "inputs" / name
    data: dict[str, Any] = {
        "name": name,
        "model": {
            "maxtext_name": "gemma3-4b",
            "source": {"directory": str(write_source_model(inputs / "model"))},
        },
        "dataset": {"source": {"files": [str(write_dialogues(inputs / "dialogues.jsonl"))]}},
        "trainer": {
            "kind": "maxtext-sft",
            "steps": STEPS,
            "checkpoint_period": CHECKPOINT_PERIOD,
            "learning_rate": 0.1,
            "max_target_length": 64,
        },
        "machines": {"tpu": {"kind": "local"}},
        "checks": {"prompts": ["Who are you?"]},
    }
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = copy.deepcopy(value)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def write_stand_in_recipe(
    root: Path, name: str, changes: Mapping[str, Any] | None = None
) -> tuple[Recipe, Path, FakeTrainer]:
    """Write a recipe with a store and a stand-in trainer of its own below ``root``."""
    store = {"store": f"file://{root}/stores/{name}"}
    path = write_recipe(root / "recipes", name, store | dict(changes or {}))
    recipe = load_recipe(path)
    trainer = FakeTrainer(root / "trainers" / name)
    trainer.plant(recipe)
    return recipe, path, trainer
