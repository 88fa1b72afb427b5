"""Whatever is wrong with a recipe, the message names field and value, and what is allowed or was meant."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.recipe import Recipe
from finetune.recipe.suggest import show_value
from tests.recipe.recipes import CLOUD_TPU, REMOVED, V6E, changed, problems_of

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    # Unknown keys
    ({"trainer.step": 5}, ["trainer.step: ", "no field of trainer", "Did you mean `steps`?"]),
    ({"trainer.lr": 1e-5}, ["trainer.lr: ", "Did you mean `learning_rate`?"]),
    ({"trainer.batch_size": 4}, ["Did you mean `per_device_batch_size`?"]),
    ({"learning_rate": 1e-5}, ["learning_rate: ", "It belongs in trainer.learning_rate"]),
    ({"modle": {}}, ["modle: ", "Did you mean `model`?"]),
    ({"machines.tpu.thread": 2}, ["machines.tpu.thread: ", "Did you mean `threads`?"]),
    ({"machines.tpu": {**V6E, "zone": "us-east5-b"}}, ["machines.tpu.zone: ", "Did you mean `zones`?"]),
    ({"machines.gpu": {"kind": "local"}}, ["machines.gpu: ", "Its fields: tpu, cpu"]),
    ({"publish.hub": {"repo": "a/b", "repo_id": "a/b"}}, ["publish.hub.repo: ", "Did you mean `repo_id`?"]),
    # Missing
    ({"trainer.steps": REMOVED}, ["trainer.steps: is missing", "Training steps", "Example: 1000"]),
    ({"model": REMOVED}, ["model: is missing", "Which model"]),
    ({"machines.tpu.kind": REMOVED}, ["machines.tpu: has no `kind`", "local, compute-engine, cloud-tpu"]),
    # Types
    ({"trainer.steps": "many"}, ["trainer.steps: given 'many'; must be a whole number"]),
    ({"trainer.steps": "10"}, ["given '10'; must be a whole number", "without quotes"]),
    ({"trainer.steps": 1.5}, ["given 1.5; must be a whole number"]),
    ({"trainer.steps": True}, ["given true; must be a whole number"]),
    ({"trainer.learning_rate": "fast"}, ["trainer.learning_rate: given 'fast'; must be a number"]),
    ({"trainer.learning_rate": float("nan")}, ["given nan; must be a finite number"]),
    ({"trainer.version": 0.25}, ["trainer.version: given 0.25; allowed: 0.2.2, 0.2.5"]),
    ({"description": 5}, ["description: given 5; must be a text", "put it in quotes: '5'"]),
    ({"trainer": "maxtext"}, ["trainer: given 'maxtext'; must be a mapping"]),
    ({"model": ["gemma"]}, ["model: given ['gemma']; must be a mapping"]),
    ({"dataset.columns": "messages"}, ["dataset.columns: given 'messages'; must be a list: [messages]"]),
    ({"publish.hub": {"repo_id": "a/b", "private": "no"}}, ["must be true or false; `no` is a text here"]),
    # Limits
    ({"trainer.steps": 0}, ["trainer.steps: given 0; must be at least 1"]),
    ({"trainer.steps": -5}, ["trainer.steps: given -5; must be at least 1"]),
    ({"trainer.learning_rate": 0}, ["given 0; must be more than 0"]),
    ({"trainer.learning_rate": 2}, ["given 2; must be at most 1"]),
    ({"dataset.heldout_percent": 60}, ["dataset.heldout_percent: given 60; must be at most 50"]),
    ({"checks.prompts": ["x"] * 11}, ["checks.prompts: ", "has 11 entries; at most 10 are allowed"]),
    ({"checks.prompts": ["Hi", ""]}, ["checks.prompts[1]: ", "must not be empty"]),
    ({"limits.train_hours": 0}, ["limits.train_hours: given 0; must be at least 1"]),
    # Choices
    (
        {"trainer.kind": "maxtext-stf"},
        ["given 'maxtext-stf'; allowed: maxtext-sft. Did you mean `maxtext-sft`?"],
    ),
    ({"trainer.version": "0.2.6"}, ["given '0.2.6'; allowed: 0.2.2, 0.2.5"]),
    ({"machines.tpu.kind": "lokal"}, ["machines.tpu: given kind 'lokal'", "Did you mean `local`?"]),
    ({"model.source.bundled": "gemma3-270"}, ["allowed: gemma3-270m, tiny. Did you mean `gemma3-270m`?"]),
    # Name and schedule
    ({"name": "Small"}, ["name: given 'Small'; must be lower-case letters, digits and hyphens"]),
    ({"schedule": "@daily"}, ["schedule: given '@daily'; write it as five fields: '0 0 * * *'"]),
    ({"schedule": "0 2 * *"}, ["which has 4 fields; needs five: minute hour day month weekday"]),
    ({"schedule": "0 25 * * *"}, ["given '0 25 * * *', which is no cron expression", "hour 0-23"]),
    ({"schedule": False}, ["schedule: given false; write null for none"]),
    # Model
    (
        {"model.maxtext_name": "gemma3-4"},
        ["model.maxtext_name: given 'gemma3-4'", "Did you mean `gemma3-4b`?"],
    ),
    (
        {"model.source": {}},
        ["model.source: needs exactly one of hub, directory, bundled; given none of them"],
    ),
    (
        {"model.source": {"hub": "a/b", "directory": "/m"}},
        ["model.source: needs exactly one of hub, directory, bundled; given `hub` and `directory`"],
    ),
    ({"model.source.revision": "main"}, ["model.source.revision: goes with `hub` only", "remove it"]),
    ({"model.source": {"hub": "gemma"}}, ["model.source.hub: given 'gemma'; must be `owner/name`"]),
    (
        {"model.overrides": {"base_emb_dims": 8}},
        ["model.overrides.base_emb_dims: ", "Did you mean `base_emb_dim`?"],
    ),
    ({"model.overrides": {"gradient_clipping_threshold": 1}}, ["set it in trainer.options"]),
    (
        {"model.overrides": {"base_emb_dim": [1]}},
        ["model.overrides.base_emb_dim: given [1]; must be one number"],
    ),
    # MaxText's options
    ({"trainer.options": {"pakcing": False}}, ["trainer.options.pakcing: ", "Did you mean `packing`?"]),
    (
        {"trainer.options": {"packing": "off"}},
        ["trainer.options.packing: given 'off'; must be of type boolean"],
    ),
    (
        {"trainer.options": {"dtype": "float23"}},
        ["given 'float23'; allowed: 'bfloat16'", "Did you mean `float32`?"],
    ),
    (
        {"trainer.options": {"adam_b1": "high"}},
        ["trainer.options.adam_b1: given 'high'; must be of type number"],
    ),
    ({"trainer.options": {"dropout_rate": 2}}, ["trainer.options.dropout_rate: given 2; must be at most 1"]),
    ({"trainer.options": {"log_period": True}}, ["given true; must be of type integer"]),
    (
        {"trainer.options": {"adam_b1": float("inf")}},
        ["trainer.options.adam_b1: given inf; must be a finite number"],
    ),
    (
        {"trainer.options": {"packing": {"a": 1}}},
        ["trainer.options.packing: given {'a': 1}; must be one number"],
    ),
    ({"trainer.options": {"formatting_func_kwargs": "x"}}, ["is a mapping, which cannot be passed on"]),
    (
        {"trainer.options": {"base_emb_dim": 8}},
        ["trainer.options.base_emb_dim: ", "set it in model.overrides"],
    ),
    (
        {"trainer.options": {"run_name": "x"}},
        ["trainer.options.run_name: is set by the run itself; remove it"],
    ),
    ({"trainer.options": {"steps": 5}}, ["trainer.options.steps: is set from trainer.steps; write it there"]),
    ({"trainer.options": {"enable_tensorboard": True}}, ["stays off", "Hub token"]),
    ({"trainer.options": {"save_config_to_gcs": True}}, ["stays off", "Hub token"]),
    (
        {"trainer.options": {"gradient_accumulation_steps": 2}},
        ["is refused", "raise trainer.per_device_batch_size"],
    ),
    (
        {"trainer.options": {"lora.enable_lora": True}},
        ["trainer.options.lora.enable_lora: is refused", "adapter"],
    ),
    (
        {"model.maxtext_name": "qwen3.5-35b-a3b-fp8", "trainer.options": {"dtype": "float32"}},
        ["trainer.options.dtype: is set by MaxText's table of qwen3.5-35b-a3b-fp8", "model.overrides"],
    ),
    ({"trainer.options": {"tokenizer_type": "x"}}, ["tokenizer_type: given 'x'; allowed: 'sentencepiece'"]),
    # Dataset
    (
        {"dataset.source": {}},
        ["dataset.source: needs exactly one of bundled, hub, files; given none of them"],
    ),
    ({"dataset.source.train_split": "train"}, ["dataset.source.train_split: goes with `hub` only"]),
    ({"dataset.source.format": "json"}, ["dataset.source.format: goes with `files` only"]),
    ({"dataset.source": {"files": []}}, ["dataset.source.files: ", "needs at least 1 entry"]),
    ({"dataset.source": {"files": ["a.csv"]}}, ["dataset.source.files[0]: given '/recipes/a.csv'", ".jsonl"]),
    ({"dataset.source": {"files": ["a.jsonl", "a.jsonl"]}}, ["has '/recipes/a.jsonl' more than once"]),
    (
        {"dataset.source": {"files": ["a.jsonl"], "heldout_files": ["a.jsonl"]}},
        ["dataset.source.heldout_files: has /recipes/a.jsonl, which is trained on too"],
    ),
    (
        {"dataset.source": {"hub": "a/b", "heldout_split": "train"}},
        ["dataset.source.heldout_split: given 'train', which is trained on too"],
    ),
    ({"dataset.source": {"hub": "a/b", "train_split": "train[:9]"}}, ["given 'train[:9]'", "bare name"]),
    ({"dataset.source": {"hub": "a/b", "revision": "v2"}}, ["given 'v2'", "main branch of a dataset only"]),
    ({"dataset.columns": ["text"]}, ["given ['text']; the trainer reads [messages] or [prompt, completion]"]),
    ({"dataset.columns": ["question", "answer"]}, ["must be [messages] for a bundled dataset"]),
    ({"dataset.heldout_percent": 0}, ["dataset.heldout_percent: given 0; must be at least 1 for a bundled"]),
    # A held-out part that something needs
    (
        {"dataset.source": {"hub": "a/b"}, "checks.min_heldout_improvement": 0.1},
        ["checks.min_heldout_improvement: needs held-out data", "name dataset.source.heldout_split"],
    ),
    (
        {
            "dataset.source": {"files": ["a.jsonl"]},
            "dataset.heldout_percent": 0,
            "trainer.eval": {"steps": 1},
            "checks.min_heldout_improvement": None,
        },
        ["trainer.eval: needs held-out data", "set dataset.heldout_percent above 0"],
    ),
    # Machines
    (
        {"machines.tpu": {**V6E, "machine_type": "ct6e-standard-8"}},
        ["Did you mean `ct6e-standard-8t`?", "Known: "],
    ),
    ({"machines.tpu": {**V6E, "machine_type": "n2-highmem-16"}}, ["which has no TPU", "ct6e-standard-8t"]),
    (
        {"machines.tpu": {**V6E, "zones": ["us-east5-d"]}},
        ["zones[0]: given 'us-east5-d', which has no v6e", "It is in"],
    ),
    ({"machines.tpu": {**V6E, "zones": []}}, ["machines.tpu.zones: ", "needs at least 1 entry"]),
    (
        {"machines.tpu": {**V6E, "zones": "us-east5-b"}},
        ["machines.tpu.zones: ", "must be a list: [us-east5-b]"],
    ),
    (
        {"machines.tpu": {**V6E, "provisioning_model": "reservation-bound"}},
        ["machines.tpu.reservation: is needed with provisioning_model reservation-bound"],
    ),
    (
        {"machines.tpu": {**V6E, "reservation": "mine"}},
        ["machines.tpu.reservation: goes with provisioning_model reservation-bound only; given on-demand"],
    ),
    (
        {"machines.tpu": {**V6E, "provisioning_model": "flex"}},
        ["allowed: reservation-bound, spot, flex-start, on-demand. Did you mean `flex-start`?"],
    ),
    (
        {"machines.tpu": {**V6E, "provisioning_model": "flex-start", "max_run_hours": 200}},
        ["machines.tpu.max_run_hours: given 200; flex-start lasts at most 168 hours"],
    ),
    ({"machines.tpu": {**V6E, "max_run_hours": 12}}, ["must be more than limits.train_hours (12)"]),
    ({"machines.tpu": {**V6E, "boot_disk_type": "pd-ssd"}}, ["given 'pd-ssd'", "takes hyperdisk-balanced"]),
    ({"machines.tpu": {**V6E, "boot_disk_gb": 10}}, ["boot_disk_gb: given 10; must be at least 50"]),
    (
        {"machines.tpu": {**V6E, "project": "My Project"}},
        ["machines.tpu.project: given 'My Project'; must be a Google Cloud project's ID"],
    ),
    (
        {"machines.tpu": {**CLOUD_TPU, "accelerator_type": "v6e-16"}},
        ["accelerator_type: given 'v6e-16'", "v6e-8"],
    ),
    (
        {"machines.tpu": {**CLOUD_TPU, "zones": ["us-west1-a"]}},
        ["which has no v6e. Did you mean `us-west1-c`?"],
    ),
    ({"machines.cpu": CLOUD_TPU}, ["machines.cpu.kind: given 'cloud-tpu'; the role cpu needs local"]),
    ({"machines.cpu": V6E}, ["machines.cpu.machine_type: given 'ct6e-standard-8t', a TPU machine"]),
    # Store, publication, messages
    ({"store": "s3://bucket"}, ["store: given 's3://bucket'; this version stores in file:// and gs:// only"]),
    (
        {"store": "runs"},
        ["store: given 'runs'; must be file:///absolute/path, gs://bucket/folder or an absolute"],
    ),
    ({"store": "file://runs"}, ["write three slashes: file:///absolute/path"]),
    ({"store": "gs://"}, ["store: given 'gs://'; the bucket's name is missing"]),
    (
        {"publish.gcs": {"uri": "my-bucket/models"}},
        ["publish.gcs.uri: given 'my-bucket/models'; must be gs://<bucket>/<folder>"],
    ),
    ({"publish.hub": {"repo_id": "model"}}, ["publish.hub.repo_id: given 'model'; must be `owner/name`"]),
    ({"notifications.on_failure": ["slack"]}, ["notifications.on_failure: ", "does not send messages yet"]),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[str(changes)[:70] for changes, _ in WRONG])
def test_a_wrong_field_is_explained(changes: dict[str, Any], words: list[str]) -> None:
    problems = problems_of(changes)
    assert len(problems) == 1, problems
    for word in words:
        assert word in problems[0]


def test_all_problems_of_a_recipe_are_listed_at_once() -> None:
    problems = problems_of(
        {
            "trainer.step": 5,
            "trainer.learning_rate": "fast",
            "trainer.options": {"pakcing": False},
            "model.maxtext_name": "gemma3-4",
            "machines.tpu.threads": 0,
        }
    )
    assert [problem.partition(": ")[0] for problem in problems] == [
        "model.maxtext_name",
        "trainer.learning_rate",
        "trainer.options.pakcing",
        "trainer.step",
        "machines.tpu.threads",
    ]


def test_a_secret_given_by_mistake_is_not_repeated() -> None:
    problems = problems_of(
        {"trainer.options": {"hf_access_token": "hf_secretsecret"}, "hub_token": ["hf_secretsecret"]}
    )
    assert "HF_TOKEN" in "".join(problems)
    assert show_value("hf_secretsecret", "hub_token") == "a value that is not shown here"
    assert "hf_secretsecret" not in "".join(problems)


def test_a_long_value_is_shortened_in_the_message() -> None:
    (problem,) = problems_of({"trainer.steps": "x" * 5000})
    assert len(problem) < 300


def test_a_kind_that_is_no_text_is_explained() -> None:
    (problem,) = problems_of({"machines.tpu.kind": 3})
    assert "machines.tpu: given kind 3" in problem


def test_a_relative_path_without_a_recipe_file_is_refused() -> None:
    data = changed({"model.source": {"directory": "model"}})
    with pytest.raises(ValueError, match="a path must be absolute here"):
        Recipe.model_validate(data)
