"""``python -m finetune``: what a person types, and what the answer says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from finetune import settings
from finetune.cli import app, parse_param
from tests.fakes.recipes import write_recipe
from tests.stages.conftest import Bench, open_workshop

Ask = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes, one of them good."""
    monkeypatch.setenv("FINETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINETUNE_RECIPES_DIR", str(tmp_path / "recipes"))
    monkeypatch.delenv("FINETUNE_STORE", raising=False)
    write_recipe(tmp_path / "recipes", "good")
    return tmp_path / "recipes"


@pytest.fixture
def ask() -> Ask:
    """Type a command; returns exit code and both outputs."""
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def test_validate_says_of_every_recipe_whether_it_is_valid(ask: Ask, folder: Path) -> None:
    answer = ask("validate")
    assert (answer.exit_code, answer.stdout) == (0, "good: valid\n")
    write_recipe(folder, "bad", {"trainer.step": 3})
    answer = ask("validate")
    assert answer.exit_code == 1
    assert answer.stdout == "good: valid\n"
    assert "bad.yaml has a problem" in answer.stderr
    assert "trainer.step" in answer.stderr
    assert "python -m finetune validate" in answer.stderr


def test_validate_takes_names_and_paths(ask: Ask, folder: Path) -> None:
    path = write_recipe(folder.parent / "elsewhere", "other")
    answer = ask("validate", "good", str(path))
    assert (answer.exit_code, answer.stdout) == (0, "good: valid\nother: valid\n")


def test_a_recipe_that_is_not_there_is_answered_with_those_that_are(ask: Ask, folder: Path) -> None:
    for command in ("validate", "plan", "run"):
        answer = ask(command, "god")
        assert answer.exit_code == 1
        assert "there is no recipe 'god'" in answer.stderr
        assert "Next: use one of: good" in answer.stderr


@pytest.mark.parametrize("name", ["gemma3-270m-chat-local", "gemma3-4b-ultrachat", "tiny-local"])
def test_plan_prints_every_stage_with_its_exact_commands(ask: Ask, name: str) -> None:
    answer = ask("plan", str(settings.INCLUDE_DIR / "recipes" / f"{name}.yaml"), "--run-id", "tonight")
    assert answer.exit_code == 0
    stages = ["install_trainer", "convert_checkpoint", "train", "export_checkpoint", "check_model"]
    headings = [line for line in answer.stdout.splitlines() if line.startswith("# ") and ": on " in line]
    assert [line.split(":")[0].removeprefix("# ") for line in headings] == stages
    assert "maxtext.trainers.post_train.sft.train_sft" in answer.stdout
    assert "/tonight/" in answer.stdout


def test_plan_refuses_a_broken_recipe(ask: Ask, folder: Path) -> None:
    write_recipe(folder, "bad", {"trainer.steps": 0})
    answer = ask("plan", "bad")
    assert answer.exit_code == 1
    assert "trainer.steps" in answer.stderr


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, list[Result]]]:
    """A bench on which two runs were made by command, with what was printed."""
    with open_workshop(tmp_path_factory.mktemp("cli")) as make_bench:
        bench = make_bench()
        name = bench.recipe_path.stem
        typed = (
            ["--run-id", "one", "--param", "steps=4"],
            ["--run-id", "two", "--param", "learning_rate=0.2"],
        )
        answers = [CliRunner().invoke(app, ["run", name, *words], env={"COLUMNS": "200"}) for words in typed]
        yield bench, answers


def test_run_tells_its_stages_and_shows_what_came_out(two_runs: tuple[Bench, list[Result]]) -> None:
    _, answers = two_runs
    text = answers[0].stdout
    assert answers[0].exit_code == 0, answers[0].output
    assert "== train\n" in text
    assert "   step 4/4, loss " in text
    assert '"heldout_loss_before": 4.0' in text
    assert '"heldout_loss_after": 2.0' in text


def test_a_parameter_on_the_command_line_changes_this_run_only(two_runs: tuple[Bench, list[Result]]) -> None:
    bench, _ = two_runs
    assert [bench.store(run).read_run().params for run in ("one", "two")] == [
        {"steps": 4},
        {"learning_rate": 0.2},
    ]
    assert [call["steps"] for call in bench.trainer.calls("train")] == [4, 10]


def test_runs_lists_the_newest_first_with_their_figures(
    two_runs: tuple[Bench, list[Result]], ask: Ask
) -> None:
    answer = ask("runs")
    assert answer.exit_code == 0
    rows = [line.split() for line in answer.stdout.splitlines()[1:]]
    assert [(row[1], row[-2:]) for row in rows] == [("two", ["4.000", "2.000"]), ("one", ["4.000", "2.000"])]
    assert "9/9" in answer.stdout
    assert ask("runs", "no-such-recipe").stdout.splitlines()[1:] == []


def test_show_tells_a_run_stage_by_stage(two_runs: tuple[Bench, list[Result]], ask: Ask) -> None:
    answer = ask("show", "two")
    assert answer.exit_code == 0
    rows = [line.split()[:2] for line in answer.stdout.splitlines()[1:10]]
    assert rows[0] == ["preflight", "done"]
    assert ["convert_checkpoint", "reused"] in rows
    shown = json.loads(answer.stdout[answer.stdout.index("{") :])
    assert shown["heldout_loss_after"] == 2.0


def test_a_run_that_is_not_there_is_answered_with_how_to_list_them(
    two_runs: tuple[Bench, list[Result]], ask: Ask
) -> None:
    answer = ask("show", "three")
    assert answer.exit_code == 1
    assert "there is no run 'three'" in answer.stderr
    assert "`python -m finetune runs` lists them" in answer.stderr


def test_a_run_that_failed_says_why_and_is_shown_with_it(ask: Ask, tmp_path: Path) -> None:
    with open_workshop(tmp_path) as make_bench:
        bench = make_bench()
        bench.trainer.set(fail={"train": "ValueError: Column name ['x'] not in the dataset"})
        answer = ask("run", bench.recipe_path.stem, "--run-id", "one")
        assert answer.exit_code == 1
        assert "StageFailed in train: the job ended with exit code 1" in answer.stderr
        assert "Column name ['x'] not in the dataset" in answer.stderr
        shown = ask("show", "one").stdout
        assert "StageFailed in train: the job ended with exit code 1" in shown
        assert "check_model" not in shown


@pytest.mark.parametrize(
    ("param", "said"),
    [
        ("step=3", "step: is no parameter of a run. Did you mean"),
        ("steps=0", "trainer.steps: given 0"),
        ("steps=many", "trainer.steps: given 'many'"),
        ("steps", "steps"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_before_anything_runs(
    ask: Ask, folder: Path, param: str, said: str
) -> None:
    answer = ask("run", "good", "--param", param)
    assert answer.exit_code == 1
    assert said in answer.stderr
    assert not (folder.parent / "home" / "machines").exists()


@pytest.mark.parametrize(
    ("text", "value"), [("a=1", 1), ("a=0.5", 0.5), ("a=null", None), ("a=x=y", "x=y"), ("a=true", True)]
)
def test_a_value_on_the_command_line_is_json_where_it_can_be(text: str, value: object) -> None:
    assert parse_param(text) == ("a", value)
