"""The chat dataset is the corpus's dialogues, split so that nothing held out is trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from on_machine.build_chatterbot_dataset import (
    Dialogue,
    clean_line,
    is_held_out,
    main,
    normalize_question,
    read_dialogues,
    split_dialogues,
    write_dataset,
)


def read_rows(path: Path) -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    english = tmp_path / "packages" / "chatterbot_corpus" / "data" / "english"
    english.mkdir(parents=True)
    questions = "".join(f"- - question {number}\n  - answer {number}\n" for number in range(200))
    english.joinpath("ai.yml").write_text(f"categories:\n- AI\nconversations:\n{questions}")
    english.joinpath("emotion.yml").write_text(
        "categories:\n- emotion\nconversations:\n"
        "- - are you sad\n  - no\n  - 'never.'\n- - are you sad\n  - no\n"
    )
    return tmp_path / "packages"


def test_no_question_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    dialogues: list[Dialogue] = []
    for number in range(300):
        dialogues += [(f"Question {number}?", "One."), (f"question {number}", "Another.")]
    counts = write_dataset(dialogues, tmp_path, heldout_percent=20)
    train, heldout = (
        {normalize_question(messages[0]["content"]) for messages in read_rows(tmp_path / f"{name}.jsonl")}
        for name in ("train", "heldout")
    )
    assert not train & heldout
    assert len(train | heldout) == 300
    assert counts["train"] + counts["heldout"] == 600
    assert 60 < counts["heldout"] < 180


def test_the_split_is_the_same_whatever_else_is_in_the_corpus() -> None:
    dialogue = ("Are you a robot?", "Yes.")
    assert is_held_out(dialogue, 50) == is_held_out(("are you a ROBOT", "No."), 50)
    assert [is_held_out((f"q{number}", "a"), 10) for number in range(8)] == [
        is_held_out((f"q{number}", "b"), 10) for number in range(8)
    ]


def test_a_larger_share_holds_out_all_that_a_smaller_one_does() -> None:
    dialogues = [(f"q{number}", "a") for number in range(100)]
    small = {dialogue for dialogue in dialogues if is_held_out(dialogue, 10)}
    large = {dialogue for dialogue in dialogues if is_held_out(dialogue, 40)}
    assert small < large


def test_alternative_answers_become_dialogues_of_their_own() -> None:
    lines = ["Are you sad", "No.", "Not now."]
    assert list(split_dialogues(lines, alternatives=True)) == [
        ("Are you sad", "No."),
        ("Are you sad", "Not now."),
    ]


def test_a_conversation_ends_with_an_answer() -> None:
    assert list(split_dialogues(["Hello", "Hi", "How are you?"], alternatives=False)) == [("Hello", "Hi")]


def test_a_question_without_an_answer_is_left_out() -> None:
    assert list(split_dialogues(["Hello"], alternatives=False)) == []
    assert list(split_dialogues(["Hello", "  "], alternatives=False)) == []


def test_lines_are_put_on_one_row_and_stray_quotes_go() -> None:
    assert clean_line("'two vultures  board\n a plane. '") == "Two vultures board a plane."
    assert clean_line("it's") == "It's"


def test_equal_dialogues_are_kept_once(packages: Path) -> None:
    corpus = packages / "chatterbot_corpus" / "data" / "english"
    assert read_dialogues(corpus, ["emotion"]) == [("Are you sad", "No"), ("Are you sad", "Never.")]


def test_the_command_writes_the_same_files_each_time(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for out in ("one", "two"):
        options = ["--packages", str(packages), "--out", str(tmp_path / out), "--categories", "ai", "emotion"]
        monkeypatch.setattr("sys.argv", ["build_chatterbot_dataset.py", *options])
        main()
    for name in ("train.jsonl", "heldout.jsonl"):
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert content
    roles = {tuple(m["role"] for m in messages) for messages in read_rows(tmp_path / "one" / "train.jsonl")}
    assert roles == {("user", "assistant")}


def test_an_unknown_category_is_refused_with_the_known_ones(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--packages", str(packages), "--out", str(tmp_path / "out"), "--categories", "poetry"]
    monkeypatch.setattr("sys.argv", ["build_chatterbot_dataset.py", *options])
    with pytest.raises(SystemExit):
        main()
    error = capsys.readouterr().err
    assert "poetry" in error
    assert "ai, emotion" in error
    assert not (tmp_path / "out").exists()
