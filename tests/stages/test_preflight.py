"""What is refused before a machine is made, and what a run leaves on record before it begins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.errors import RecipeError, StoreError
from finetune.stages import preflight
from finetune.stages.context import RunContext, recipe_path
from finetune.stages.preflight import check_model_directory, run_preflight
from finetune.store import Store
from tests.fakes.recipes import DIALOGUES
from tests.stages.conftest import Bench


def test_the_run_is_on_record_with_its_recipe_params_and_versions_before_it_begins(bench: Bench) -> None:
    context = bench.context(steps=3, learning_rate=0.5)
    record = run_preflight(context)
    run = context.store.read_run()
    assert (run.recipe_name, run.run_id) == (bench.recipe_path.stem, "one")
    assert run.params == {"steps": 3, "learning_rate": 0.5}
    assert run.recipe["trainer"]["steps"] == 3
    assert run.recipe_digest == context.recipe.digest()
    assert run.versions["maxtext"] == "0.2.5"
    assert record.evidence["stages"][-1] == "check_model"


def test_the_data_are_split_and_counted(bench: Bench) -> None:
    counts = run_preflight(bench.context()).evidence["dataset"]
    assert counts["train"] + counts["heldout"] == DIALOGUES
    assert counts["heldout"] > 0
    for part, count in counts.items():
        lines = (bench.store().root / "data" / f"{part}.jsonl").read_text().splitlines()
        assert len(lines) == count


def test_a_broken_dataset_is_refused_with_file_and_line(bench: Bench) -> None:
    file = Path(bench.context().recipe.dataset.source.files[0])
    file.write_text(file.read_text() + "{broken\n")
    with pytest.raises(RecipeError, match=rf"dialogues\.jsonl.*{DIALOGUES + 1}"):
        run_preflight(bench.context())
    assert not bench.store().run_json.exists()


def empty(folder: Path) -> None:
    shutil.rmtree(folder)


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{broken")


def hide_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def change_type(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (empty, "there is no directory "),
        (drop_config, "has no config.json"),
        (spoil_config, "does not say its model_type"),
        (hide_type, "does not say its model_type"),
        (
            change_type,
            "holds a 'llama' model, but model.maxtext_name 'gemma3-4b' is of gemma3 or gemma3_text",
        ),
        (drop_weights, "has no weights (*.safetensors)"),
        (drop_tokenizer, "has no tokenizer (tokenizer.json or tokenizer.model)"),
    ],
)
def test_a_directory_without_a_model_of_the_recipes_kind_is_refused(
    bench: Bench, spoil: Callable[[Path], None], said: str
) -> None:
    folder = Path(str(bench.context().recipe.model.source.directory))
    spoil(folder)
    with pytest.raises(RecipeError) as caught:
        run_preflight(bench.context())
    assert caught.value.cause.startswith("model.source.directory: ")
    assert said in caught.value.cause
    assert caught.value.resource == str(folder)
    assert caught.value.left == "nothing was created"


def test_a_model_of_a_family_that_is_not_known_here_is_left_to_maxtext(bench: Bench) -> None:
    folder = Path(str(bench.context().recipe.model.source.directory))
    change_type(folder)
    check_model_directory(folder, "deepseek2-16b")


def test_a_store_that_cannot_be_written_is_refused(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    bench = make_bench()
    recipe = bench.context().recipe.model_copy(update={"store": f"file://{tmp_path}/file/store"})
    with pytest.raises(StoreError, match="file/store cannot be written"):
        run_preflight(RunContext(recipe, "one", {}))


def test_a_disk_that_is_too_small_for_a_run_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "LEAST_FREE_BYTES", 10**18)
    with pytest.raises(StoreError, match="a run needs at least 1000000000 GB") as caught:
        run_preflight(bench.context())
    assert "FINETUNE_STORE" in str(caught.value.next_step)


def test_a_recipe_with_publication_is_refused_before_anything_is_made(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench({"publish": {"hub": {"repo_id": "my-org/model"}}})
    with pytest.raises(RecipeError, match="does not publish them yet"):
        run_preflight(bench.context())
    assert Store(bench.context().recipe.store_url()).runs() == []


def test_a_kind_of_machine_that_this_version_lacks_is_refused(make_bench: Callable[..., Bench]) -> None:
    google = {"kind": "compute-engine", "project": "my-project", "zones": ["us-east5-b"]}
    bench = make_bench({"machines": {"tpu": google | {"machine_type": "ct6e-standard-8t"}}})
    with pytest.raises(RecipeError, match="No machines of kind 'compute-engine' in this version"):
        run_preflight(bench.context())


def test_a_recipe_that_is_not_there_is_answered_with_those_that_are(bench: Bench) -> None:
    with pytest.raises(RecipeError, match="there is no recipe 'smal'") as caught:
        recipe_path("smal")
    assert caught.value.next_step == f"use one of: {bench.recipe_path.stem}"
