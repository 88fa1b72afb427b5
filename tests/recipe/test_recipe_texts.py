"""Environment variables and relative paths in a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune import settings
from finetune.recipe import load_recipe
from tests.recipe.recipes import V6E, problems_of, recipe_with

TUTORIAL = settings.INCLUDE_DIR / "recipes" / "gemma3-4b-ultrachat.yaml"
TUTORIAL_VARIABLES = (
    "GOOGLE_CLOUD_PROJECT",
    "TPU_ZONE",
    "TPU_RESERVATION",
    "FINETUNE_BUCKET",
    "HUB_ORGANIZATION",
)


def test_the_tutorials_recipe_needs_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TUTORIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    machine = load_recipe(TUTORIAL).machines.tpu
    assert machine.kind == "compute-engine"
    assert (machine.project, machine.zones, machine.reservation) == (
        "my-project",
        ("us-east5-b",),
        "my-reservation",
    )


def test_the_tutorials_recipe_takes_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("their-project", "us-central1-b", "their-reservation", "their-bucket", "their-org")
    for name, value in zip(TUTORIAL_VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    recipe = load_recipe(TUTORIAL)
    machine = recipe.machines.tpu
    assert machine.kind == "compute-engine"
    assert (machine.project, machine.zones, machine.reservation) == (values[0], (values[1],), values[2])
    assert recipe.store_url() == "gs://their-bucket/finetune"
    assert recipe.publish.gcs is not None
    assert recipe.publish.gcs.uri == "gs://their-bucket/models/gemma3-4b-ultrachat"
    assert recipe.publish.hub is not None
    assert recipe.publish.hub.repo_id == "their-org/gemma3-4b-ultrachat"


def test_a_variables_value_is_checked_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ZONE", "us-east5-x")
    (problem,) = problems_of({"machines.tpu": {**V6E, "zones": ["${TPU_ZONE}"]}})
    assert "machines.tpu.zones[0]: given 'us-east5-x'" in problem


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_BUCKET", raising=False)
    (problem,) = problems_of({"store": "gs://${UNSET_BUCKET}/runs"})
    assert (
        "store: given 'gs://${UNSET_BUCKET}/runs', but the environment variable UNSET_BUCKET is not set"
        in problem
    )
    assert "${UNSET_BUCKET:-some value}" in problem


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET", "")
    assert recipe_with({"store": "gs://${BUCKET:-other}/runs"}).store == "gs://other/runs"


def test_an_empty_default_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_RESERVATION", raising=False)
    machine = recipe_with({"machines.tpu": {**V6E, "reservation": "${TPU_RESERVATION:-}"}}).machines.tpu
    assert machine.kind == "compute-engine"
    assert machine.reservation is None


def test_paths_start_at_the_recipe_file(tmp_path: Path) -> None:
    changes = {
        "model.source": {"directory": "models/small"},
        "dataset.source": {"files": ["../data/*.jsonl", "gs://bucket/a.jsonl", "/data/b.jsonl"]},
    }
    recipe = recipe_with(changes, tmp_path / "recipes")
    assert recipe.model.source.directory == f"{tmp_path}/recipes/models/small"
    assert recipe.dataset.source.files == (f"{tmp_path}/data/*.jsonl", "gs://bucket/a.jsonl", "/data/b.jsonl")


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    recipe = recipe_with({"model.source": {"directory": "~/models/small"}})
    assert recipe.model.source.directory == "/home/someone/models/small"
