"""The shell script of a stage: what it runs, what it passes over, and what it keeps apart."""

from __future__ import annotations

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune.steps import MAX_LINE_LENGTH, Step, command, render_script

HARD_WORDS = [
    "plain",
    "two words",
    "it's",
    '"quoted"',
    "$HOME",
    "`date`",
    "a;b",
    "*",
    "",
    "\\",
    "é ü",
    "-n",
    "a=b c",
]


def run_script(folder: Path, *steps: Step, env: dict[str, str] | None = None, **inherited: str) -> str:
    """Run the script of some steps in a folder; returns what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    script = render_script(steps, env or {})
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | inherited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("word", HARD_WORDS)
def test_a_word_reaches_its_command_as_it_is(tmp_path: Path, word: str) -> None:
    printed = run_script(tmp_path, Step("say", (command("printf", "<%s>", word),)))
    assert printed == f"[say] running\n<{word}>"


def test_a_variable_that_is_quoted_by_its_author_is_left_to_the_shell(tmp_path: Path) -> None:
    said = command("printf", "%s", '"$WHAT/here"')
    assert run_script(tmp_path, Step("say", (said,)), env={"WHAT": "a b"}).endswith("a b/here")


def test_a_short_command_stays_on_one_line() -> None:
    assert command("python", "train.py", "--steps", "10") == "python train.py --steps 10"


def test_a_long_command_has_an_option_in_each_line_and_means_the_same() -> None:
    words = [
        "python",
        "train.py",
        *(f"option_{number}=value {number}" for number in range(20)),
        "--flag",
        "x",
    ]
    text = command(*words)
    assert max(len(line) for line in text.splitlines()) <= MAX_LINE_LENGTH
    assert len(text.splitlines()) == 22
    assert shlex.split(text.replace("\\\n", "")) == words


def test_an_artifact_is_made_once_and_then_reused(tmp_path: Path) -> None:
    output = tmp_path / "cache" / "thing"
    step = Step("thing", ('echo made > "$NEW"', "echo once >> log"), str(output))
    assert run_script(tmp_path, step) == f"[thing] making {output}\n"
    assert run_script(tmp_path, step) == f"[thing] reused: {output}\n"
    assert output.read_text() == "made\n"
    assert (tmp_path / "log").read_text() == "once\n"


def test_an_artifact_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "thing"
    half_made = Step(
        "thing", ('mkdir "$NEW"', 'touch "$NEW/first"', "false", 'touch "$NEW/second"'), str(output)
    )
    done = subprocess.run(["bash", "-c", render_script([half_made], {})], cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert not output.exists()
    whole = Step("thing", ('mkdir "$NEW"', 'touch "$NEW/second"'), str(output))
    run_script(tmp_path, whole)
    assert [path.name for path in output.iterdir()] == ["second"]


def test_of_two_that_want_the_same_artifact_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    output = tmp_path / "thing"
    step = Step("thing", (f"echo making >> {tmp_path}/log", "sleep 0.3", 'touch "$NEW"'), str(output))
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda name: run_script(tmp_path / name, step), ("one", "two")))
    assert sorted(said) == [f"[thing] making {output}\n", f"[thing] reused: {output}\n"]
    assert (tmp_path / "log").read_text() == "making\n"


def test_an_artifact_may_have_any_name(tmp_path: Path) -> None:
    output = tmp_path / "a folder's $name" / "thing"
    run_script(tmp_path, Step("thing", ('touch "$NEW"',), str(output)))
    assert output.exists()


@pytest.mark.parametrize("failing", ["false", "false | true", "echo $NOT_SET"])
def test_the_first_failure_ends_the_script(tmp_path: Path, failing: str) -> None:
    script = render_script(
        [Step("first", (failing, "touch went-on")), Step("second", ("touch went-on",))], {}
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "went-on").exists()


def test_commands_of_several_lines_stay_as_they_are(tmp_path: Path) -> None:
    lines = "if true; then\n  echo yes\nfi"
    assert run_script(tmp_path, Step("ask", (lines,))) == "[ask] running\nyes\n"


def test_variables_of_a_stage_reach_its_commands_whatever_is_in_them(tmp_path: Path) -> None:
    value = 'it\'s $HOME; "x"'
    assert run_script(tmp_path, Step("say", ('printf %s "$VALUE"',)), env={"VALUE": value}).endswith(value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"]
)
def test_tokens_and_settings_of_whoever_starts_it_do_not_reach_a_job(tmp_path: Path, name: str) -> None:
    printed = run_script(tmp_path, Step("say", (f'echo "<${{{name}-unset}}>"',)), **{name: "inherited"})
    assert printed == "[say] running\n<unset>\n"


def test_what_hugging_face_caches_stays_in_the_jobs_own_folder(tmp_path: Path) -> None:
    printed = run_script(tmp_path, Step("say", ('echo "$HF_HOME"',)), HF_HOME="/somewhere/else")
    assert printed == f"[say] running\n{tmp_path}/huggingface\n"
