"""From a recipe to stages: their order, their commands, and what a change of the recipe changes."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune import settings
from finetune.errors import RecipeError
from finetune.plan import Plan, Stage, make_plan
from finetune.recipe import apply_params, load_recipe
from finetune.recipe.load import parse_recipe
from tests.recipe.recipes import recipe_with

STAGES = ["install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model"]
SHIPPED = sorted(path.stem for path in (settings.INCLUDE_DIR / "recipes").glob("*.yaml"))


def shipped_plan(name: str, run_id: str = "one", **params: Any) -> Plan:
    """Return the plan of a recipe that ships."""
    recipe = load_recipe(settings.INCLUDE_DIR / "recipes" / f"{name}.yaml")
    return make_plan(apply_params(recipe, params), run_id)


def small_plan(run_id: str = "one", **changes: Any) -> Plan:
    """Return the plan of the minimal recipe with changes by dotted path."""
    return make_plan(recipe_with({path.replace("__", "."): value for path, value in changes.items()}), run_id)


def options_of(stage: Stage) -> dict[str, str]:
    """Return MaxText's ``key=value`` arguments of a stage."""
    words = shlex.split(stage.script.replace("\\\n", " "), comments=False)
    return dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))


def test_the_recipes_that_ship_are_those_that_are_tested_here() -> None:
    assert SHIPPED == ["gemma3-270m-chat-local", "gemma3-4b-ultrachat", "tiny-local"]


@pytest.mark.parametrize("name", SHIPPED)
def test_each_recipe_that_ships_has_all_stages_in_order_and_valid_scripts(name: str) -> None:
    plan = shipped_plan(name)
    assert [stage.name for stage in plan.stages] == STAGES
    for stage in plan.stages:
        checked = subprocess.run(
            ["bash", "-n", "-c", stage.script], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, ""), stage.name
        assert stage.outputs
        assert stage.limit_seconds > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_stage_reads_only_what_stages_before_it_make(name: str) -> None:
    seen: list[str] = []
    for stage in shipped_plan(name).stages:
        assert set(stage.needs) <= set(seen)
        seen.append(stage.name)


def test_the_tutorials_job_has_the_tutorials_flags() -> None:
    plan = shipped_plan("gemma3-4b-ultrachat")
    options = options_of(plan.stage("train"))
    wanted = {
        "model_name": "gemma3-4b",
        "steps": "1000",
        "per_device_batch_size": "1",
        "max_target_length": "1024",
        "learning_rate": "2e-05",
        "hf_path": "HuggingFaceH4/ultrachat_200k",
        "train_split": "train_sft",
        "train_data_columns": "['messages']",
        "checkpoint_period": "250",
    }
    assert {name: options.get(name) for name in wanted} == wanted
    assert options["base_output_directory"].startswith("gs://")
    assert "hardware" not in options
    assert "maxtext.trainers.post_train.sft.train_sft" in plan.stage("train").script
    assert [stage.role for stage in plan.stages] == ["tpu", "cpu", "tpu", "cpu", "worker"]


def test_a_local_run_trains_on_the_cpu_without_the_hub() -> None:
    stage = shipped_plan("tiny-local").stage("train")
    options = options_of(stage)
    assert (options["hardware"], options["attention"]) == ("cpu", "dot_product")
    assert stage.env["JAX_PLATFORMS"] == "cpu"
    assert stage.env["HF_HUB_OFFLINE"] == "1"
    assert stage.secrets == ()


@pytest.mark.parametrize("name", SHIPPED)
def test_no_trainer_writes_tensorboard_files_which_would_hold_the_token(name: str) -> None:
    assert options_of(shipped_plan(name).stage("train"))["enable_tensorboard"] == "false"


def test_a_recipe_of_the_hub_asks_for_the_token_and_never_puts_it_into_a_command() -> None:
    plan = shipped_plan("gemma3-4b-ultrachat")
    assert plan.stage("convert_checkpoint").secrets == ("HF_TOKEN",)
    assert plan.stage("install_trainer").secrets == ()
    for stage in plan.stages:
        uses = [line for line in stage.script.splitlines() if "FINETUNE_SECRET_HF_TOKEN" in line]
        assert all('HF_TOKEN="${FINETUNE_SECRET_HF_TOKEN-}"' in line for line in uses)


@pytest.mark.parametrize(
    "name",
    ["steps", "learning_rate", "per_device_batch_size", "max_target_length", "checkpoint_period", "seed"],
)
def test_each_param_of_a_run_reaches_the_trainer_and_makes_another_training(name: str) -> None:
    value = {"learning_rate": 0.125}.get(name, 9)
    before, after = shipped_plan("tiny-local"), shipped_plan("tiny-local", **{name: value})
    option = {"seed": "data_shuffle_seed"}.get(name, name)
    assert options_of(after.stage("train"))[option] == str(value)
    assert before.stage("train").digest != after.stage("train").digest
    assert before.stage("convert_checkpoint").digest == after.stage("convert_checkpoint").digest
    folders = [Path(plan.stage("train").outputs["checkpoint"]).parents[1] for plan in (before, after)]
    assert folders[0].parent == folders[1].parent
    assert folders[0] != folders[1], "MaxText would take up the other training's checkpoints"


def test_the_gate_changes_no_stage() -> None:
    before = shipped_plan("tiny-local")
    after = shipped_plan("tiny-local", min_heldout_improvement=0.5)
    assert [stage.digest for stage in before.stages] == [stage.digest for stage in after.stages]


def test_the_same_recipe_has_the_same_plan_again() -> None:
    plans = [shipped_plan("gemma3-270m-chat-local") for _ in range(2)]
    assert [stage.digest for stage in plans[0].stages] == [stage.digest for stage in plans[1].stages]


def test_runs_share_environment_model_and_conversion_and_nothing_else() -> None:
    one, two = small_plan("one"), small_plan("two")
    shared = {stage.name for stage in one.stages if stage.digest == two.stage(stage.name).digest}
    assert shared == {"install_trainer", "convert_checkpoint"}
    assert {stage.name for stage in one.stages if stage.shared} == shared
    assert one.stage("convert_checkpoint").outputs == two.stage("convert_checkpoint").outputs
    assert one.stage("check_model").outputs["before"] == two.stage("check_model").outputs["before"]
    assert one.stage("check_model").outputs["after"] != two.stage("check_model").outputs["after"]


def test_recipes_share_what_they_have_in_common() -> None:
    one, two = small_plan(name="one"), small_plan(name="two", trainer__steps=99)
    for stage in ("install_trainer", "convert_checkpoint"):
        assert one.stage(stage).outputs == two.stage(stage).outputs


@pytest.mark.parametrize(
    "change", [{"model__overrides": {"base_emb_dim": 128}}, {"model__source": {"bundled": "gemma3-270m"}}]
)
def test_another_model_is_another_conversion(change: dict[str, Any]) -> None:
    outputs = [
        plan.stage("convert_checkpoint").outputs["checkpoint"]
        for plan in (small_plan(), small_plan(**change))
    ]
    assert outputs[0] != outputs[1]


def test_a_model_directory_whose_files_change_is_converted_anew(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_text("one")
    source = {"model__source": {"directory": str(model)}}
    before = small_plan(**source).stage("convert_checkpoint").outputs["checkpoint"]
    (model / "model.safetensors").write_text("other")
    assert small_plan(**source).stage("convert_checkpoint").outputs["checkpoint"] != before


@pytest.mark.parametrize(
    "change",
    [{"checks__prompts": ["Another?"]}, {"checks__max_new_tokens": 7}, {"trainer__max_target_length": 99}],
)
def test_what_the_check_asks_for_decides_whether_an_earlier_measurement_counts(
    change: dict[str, Any],
) -> None:
    outputs = [plan.stage("check_model").outputs["before"] for plan in (small_plan(), small_plan(**change))]
    assert outputs[0] != outputs[1]


def test_a_script_that_runs_on_the_machine_is_a_part_of_each_stages_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = small_plan().stage("train").digest
    for script in settings.ON_MACHINE_DIR.glob("*.py"):
        (tmp_path / script.name).write_bytes(script.read_bytes())
    monkeypatch.setattr(settings, "ON_MACHINE_DIR", tmp_path)
    assert small_plan().stage("train").digest == before
    (tmp_path / "finish_export.py").write_text("# another")
    assert small_plan().stage("train").digest != before


def test_limits_of_the_recipe_are_those_of_its_stages() -> None:
    limits = {
        "install_minutes": 1,
        "convert_minutes": 2,
        "train_hours": 3,
        "export_minutes": 4,
        "check_minutes": 5,
    }
    plan = small_plan(limits=limits)
    assert [stage.limit_seconds for stage in plan.stages] == [60, 120, 3 * 3600, 240, 300]


def test_options_of_the_trainer_are_passed_on_as_maxtext_writes_them() -> None:
    options = {"packing": False, "warmup_steps_fraction": 0.25, "dtype": "float32"}
    words = options_of(small_plan(trainer__options=options).stage("train"))
    assert {name: words[name] for name in options} == {
        "packing": "false",
        "warmup_steps_fraction": "0.25",
        "dtype": "float32",
    }


def test_data_never_run_out_before_the_last_step() -> None:
    script = small_plan(trainer__steps=100, trainer__per_device_batch_size=4).stage("train").script
    count = next(line.strip() for line in script.splitlines() if line.strip().startswith("epochs="))
    # 101 batches of 4, each packed from 25 conversations at most: MaxText asks for one batch too many.
    for rows, needed in ((1, 10_100), (10_099, 2), (10_100, 1), (50_000, 1)):
        shell = subprocess.run(
            ["bash", "-c", f"rows={rows}; {count}; echo $epochs"], capture_output=True, text=True, check=True
        )
        assert int(shell.stdout) == needed, rows


def test_a_trainer_without_a_lock_for_this_machine_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(RecipeError, match=r"MaxText 0\.2\.2 has no lock file") as caught:
        small_plan(trainer__version="0.2.2")
    assert caught.value.next_step == "use one of: 0.2.5"


def test_prompts_reach_the_check_whatever_is_in_them(tmp_path: Path) -> None:
    prompts = ['It\'s "so"?\nReally $HOME `date`?', "Ünïcode \\ and 'quotes'"]
    text = yaml.safe_dump(recipe_with({"checks.prompts": prompts}).model_dump(mode="json"))
    stage = make_plan(parse_recipe(text, Path("/recipes/small.yaml")), "one").stage("check_model")
    lines = [line for line in stage.script.split("\n") if 'prompts.json"' in line and "printf" in line]
    subprocess.run(["bash", "-c", lines[0]], cwd=tmp_path, check=True)
    assert yaml.safe_load((tmp_path / "prompts.json").read_text()) == prompts
