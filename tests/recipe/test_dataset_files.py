"""Dataset files are read in full before anything is paid for, and split the same way in every run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from finetune.errors import RecipeError
from finetune.recipe import Recipe
from finetune.recipe.dataset_files import check_dataset, write_split
from tests.recipe.recipes import problem_lines, recipe_with


def chat(question: str, answer: str = "Fine.") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_files(folder: Path, *files: str, **changes: Any) -> Recipe:
    return recipe_with({"dataset.source": {"files": list(files)}, **changes}, folder)


def problems_in(recipe: Recipe) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check_dataset(recipe)
    assert "cannot be trained on" in str(caught.value)
    return problem_lines(caught.value)


def test_the_rows_of_all_files_are_counted(tmp_path: Path) -> None:
    write_lines(tmp_path / "data/b.jsonl", [chat("1"), chat("2")])
    write_lines(tmp_path / "data/a.jsonl", [chat("3")])
    held = write_lines(tmp_path / "held.jsonl", [chat("4")])
    recipe = recipe_with(
        {"dataset.source": {"files": ["data/*.jsonl"], "heldout_files": ["held.jsonl"]}}, tmp_path
    )
    report = check_dataset(recipe)
    assert report.files == (f"{tmp_path}/data/a.jsonl", f"{tmp_path}/data/b.jsonl")
    assert report.heldout_files == (str(held),)
    assert (report.rows, report.heldout_rows) == (3, 1)


def test_a_source_that_is_no_files_passes_unread() -> None:
    report = check_dataset(recipe_with())
    assert (report.files, report.rows) == ((), None)


def test_a_file_url_and_a_compressed_file_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps(chat("1")) + "\n")
    write_lines(tmp_path / "b.jsonl", [chat("2")])
    report = check_dataset(of_files(tmp_path, "a.jsonl.gz", f"file://{tmp_path}/b.jsonl"))
    assert report.rows == 2


def test_an_object_store_is_read_through_its_url(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://bucket/chats/a.jsonl", "w") as file:
        file.write(json.dumps(chat("1")) + "\n")
    report = check_dataset(of_files(tmp_path, "memory://bucket/chats/*.jsonl"))
    assert report.files == ("memory:///bucket/chats/a.jsonl",)
    assert report.rows == 1


def test_parquet_rows_are_read(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist([{**chat("1"), "id": 1}, {**chat("2"), "id": 2}])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert check_dataset(of_files(tmp_path, "a.parquet")).rows == 2


WRONG_ROWS: list[tuple[Any, str]] = [
    ({"text": "Hi"}, "has no column `messages` (columns there: text)"),
    ([1, 2], "a row is an object with the column messages"),
    ({"messages": "Hi"}, "has 'Hi' in `messages`; needs a list of messages with role and content"),
    ({"messages": None}, "has null in `messages`"),
    ({"messages": []}, "has [] in `messages`"),
    ({"messages": ["Hi"]}, "has 'Hi' in messages[0]; a message needs role and content"),
    ({"messages": [{"from": "human", "value": "Hi"}]}, "messages[0]; a message needs role and content"),
    (
        {"messages": [{"role": "human", "content": "Hi"}]},
        "has the role 'human' in messages[0]; allowed: system, user",
    ),
    (
        {"messages": [{"role": "user", "content": ["Hi"]}]},
        "has ['Hi'] in messages[0].content, which is no text",
    ),
    ({"messages": [{"role": "user", "content": None}]}, "has null in messages[0].content, which is no text"),
    ({"messages": [{"role": "user", "content": "\ud83d"}]}, "half a surrogate pair in messages[0].content"),
    (
        {"messages": [{"role": "user", "content": "Hi"}]},
        "has no assistant message, so there is nothing to learn",
    ),
    (chat("Hi", " "), "has only empty assistant messages"),
    ({"messages": chat("Hi")["messages"][1:]}, "has an assistant message before any user message"),
    (
        {"messages": chat("a")["messages"][:1] * 2 + chat("a")["messages"]},
        "two user messages in a row (numbers 1 and 2)",
    ),
    (
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                *chat("a")["messages"],
                chat("a")["messages"][1],
            ]
        },
        "two assistant messages in a row (numbers 3 and 4); join them",
    ),
    (
        {"messages": [*chat("a")["messages"], {"role": "system", "content": "Be kind."}]},
        "has a system message as number 3; it may only be the first",
    ),
]


@pytest.mark.parametrize(("row", "words"), WRONG_ROWS, ids=[words[:40] for _, words in WRONG_ROWS])
def test_a_row_that_maxtext_would_stop_at_is_named_with_its_line(
    tmp_path: Path, row: Any, words: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat("fine"), row, chat("fine too")])
    (problem,) = problems_in(of_files(tmp_path, "a.jsonl"))
    assert problem.startswith(f"{path}, line 2: ")
    assert words in problem


def test_broken_json_is_named_with_its_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{json.dumps(chat("1"))}\n\n{{"messages": [\n{json.dumps(chat("2"))}\n')
    (problem,) = problems_in(of_files(tmp_path, "a.jsonl"))
    assert problem.startswith(f"{path}, line 3: is broken JSON: ")
    assert "column" in problem


def test_a_json_list_is_told_from_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([chat("1")], indent=1))
    (problem,) = problems_in(of_files(tmp_path, "a.json"))
    assert "holds one JSON list; needs one object a line (jq -c '.[]'" in problem


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps(chat("1")).encode() + b"\n\xff\xfe\n")
    (problem,) = problems_in(of_files(tmp_path, "a.jsonl"))
    assert "line 2: is not UTF-8 text (byte 1)" in problem


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(chat("1")).encode())
    assert check_dataset(of_files(tmp_path, "a.jsonl")).rows == 1


def test_missing_empty_and_unmatched_files_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder.jsonl").mkdir()
    problems = problems_in(of_files(tmp_path, "absent.jsonl", "none/*.jsonl", "empty.jsonl", "folder.jsonl"))
    assert problems == [
        f"{tmp_path}/absent.jsonl does not exist",
        f"{tmp_path}/none/*.jsonl matches no file",
        f"{tmp_path}/folder.jsonl is a folder; write {tmp_path}/folder.jsonl/*.jsonl for the files in it",
        f"{tmp_path}/empty.jsonl is empty",
    ]


def test_a_scheme_that_nothing_can_open_is_named(tmp_path: Path) -> None:
    (problem,) = problems_in(of_files(tmp_path, "ftpp://host/a.jsonl"))
    assert "ftpp://host/a.jsonl cannot be looked up: Protocol not known: ftpp" in problem


def test_a_file_that_is_no_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain")
    (problem,) = problems_in(of_files(tmp_path, "a.jsonl.gz"))
    assert f"{tmp_path}/a.jsonl.gz cannot be read: Not a gzipped file" in problem


def test_parquet_problems_are_named_with_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["Hi"]}), tmp_path / "columns.parquet")
    rows = [chat("1"), {"messages": chat("2")["messages"][:1]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    broken, columns, row = problems_in(of_files(tmp_path, "*.parquet"))
    assert f"{tmp_path}/broken.parquet is no readable Parquet file: " in broken
    assert columns == f"{tmp_path}/columns.parquet has no column `messages` (columns there: text)"
    assert row == f"{tmp_path}/rows.parquet, row 2: has no assistant message, so there is nothing to learn"


def test_a_missing_column_is_said_once_for_a_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "Hi"}] * 50)
    write_lines(tmp_path / "b.jsonl", [{"chat": "Hi"}] * 50)
    assert len(problems_in(of_files(tmp_path, "*.jsonl"))) == 2


def test_reading_stops_after_twenty_problems(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": []}] * 50)
    with pytest.raises(RecipeError, match="stopped after the first 20") as caught:
        check_dataset(of_files(tmp_path, "a.jsonl"))
    assert len(problem_lines(caught.value)) == 20


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (["messages"], {**chat("Hi", "Hello"), "source": "web"}),
        (["prompt", "completion"], {"prompt": "Hi", "completion": "Hello"}),
        (["prompt", "completion"], {"prompt": [chat("Hi")["messages"][0]], "completion": "Hello"}),
        (["question", "answer"], {"question": "Hi", "answer": "Hello", "id": 3}),
    ],
)
def test_every_kind_of_row_becomes_the_same_messages(tmp_path: Path, columns: list[str], row: Any) -> None:
    write_lines(tmp_path / "a.jsonl", [row])
    recipe = of_files(
        tmp_path,
        "a.jsonl",
        **{"dataset.columns": columns, "dataset.heldout_percent": 0, "checks.min_heldout_improvement": None},
    )
    report = write_split(recipe, tmp_path / "out")
    assert read_lines(report.train) == [chat("Hi", "Hello")]
    assert report.heldout is None
    assert recipe.dataset.training_columns() == ("messages",)


def test_lists_of_prompts_and_completions_are_woven_together(tmp_path: Path) -> None:
    first, second = chat("1", "one")["messages"], chat("2", "two")["messages"]
    system = {"role": "system", "content": "Be kind."}
    rows = [
        {"prompt": [first[0], second[0]], "completion": [first[1], second[1]]},
        {"prompt": [system, *first, second[0]], "completion": [second[1]]},
    ]
    write_lines(tmp_path / "a.jsonl", rows)
    changes = {"dataset.heldout_percent": 0, "checks.min_heldout_improvement": None}
    recipe = of_files(tmp_path, "a.jsonl", **{"dataset.columns": ["prompt", "completion"], **changes})
    report = write_split(recipe, tmp_path / "out")
    assert read_lines(report.train) == [
        {"messages": [*first, *second]},
        {"messages": [system, *first, *second]},
    ]


def test_the_split_is_the_same_in_every_run_and_loses_nothing(tmp_path: Path) -> None:
    rows = [chat(f"Question {number}", "Grüße 😀") for number in range(300)]
    write_lines(tmp_path / "a.jsonl", rows)
    first = write_split(of_files(tmp_path, "a.jsonl"), tmp_path / "one")
    write_lines(tmp_path / "a.jsonl", rows[::-1])
    second = write_split(of_files(tmp_path, "a.jsonl"), tmp_path / "two")

    assert first.heldout is not None
    assert second.heldout is not None
    train, held = read_lines(first.train), read_lines(first.heldout)
    assert sorted(map(str, train + held)) == sorted(map(str, rows))
    assert read_lines(second.heldout) == held[::-1]
    assert (first.train_rows, first.heldout_rows) == (len(train), len(held))
    assert 15 <= len(held) <= 45  # 10 percent of 300, give or take


def test_the_same_question_is_never_on_both_sides(tmp_path: Path) -> None:
    rows = [
        chat(f"{'  ' * (number % 3)}{'Qq'[number % 2]}uestion {number // 6}", f"Answer {number}")
        for number in range(600)
    ]
    write_lines(tmp_path / "a.jsonl", rows)
    report = write_split(of_files(tmp_path, "a.jsonl"), tmp_path / "out")
    assert report.heldout is not None

    def questions(path: Path) -> set[str]:
        return {row["messages"][0]["content"].strip().lower() for row in read_lines(path)}

    assert questions(report.train) & questions(report.heldout) == set()


def test_what_is_held_out_by_name_is_not_trained_on(tmp_path: Path) -> None:
    others = [chat(f"Question {number}") for number in range(50)]
    write_lines(tmp_path / "a.jsonl", [chat("1"), chat("2"), chat("2", "Another answer."), *others])
    write_lines(tmp_path / "held.jsonl", [chat("2"), chat("3")])
    source = {"files": ["a.jsonl"], "heldout_files": ["held.jsonl"]}
    report = write_split(recipe_with({"dataset.source": source}, tmp_path), tmp_path / "out")
    assert report.heldout is not None
    assert read_lines(report.train) == [chat("1"), chat("2", "Another answer."), *others]
    assert read_lines(report.heldout) == [chat("2"), chat("3")]
    assert (report.train_rows, report.heldout_rows, report.dropped_rows) == (52, 2, 1)


def test_a_failed_split_leaves_nothing_behind(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [chat("1"), {"messages": []}])
    out = tmp_path / "out"
    with pytest.raises(RecipeError, match="line 2"):
        write_split(of_files(tmp_path, "a.jsonl"), out)
    assert list(out.iterdir()) == []


def test_a_failed_split_keeps_the_last_good_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [chat(f"{number}") for number in range(50)])
    report = write_split(of_files(tmp_path, "a.jsonl"), tmp_path / "out")
    before = report.train.read_text()
    write_lines(tmp_path / "a.jsonl", [{"messages": []}])
    with pytest.raises(RecipeError):
        write_split(of_files(tmp_path, "a.jsonl"), tmp_path / "out")
    assert report.train.read_text() == before


@pytest.mark.parametrize(
    ("percent", "words"),
    [
        (50, "all 1 conversations are held out"),
        (1, "none of the 1 conversations fell into the held-out 1 percent"),
    ],
)
def test_a_split_with_an_empty_side_is_refused(tmp_path: Path, percent: int, words: str) -> None:
    question = {50: "c", 1: "x"}[percent]  # their hashes fall on 30 and 76 of a hundred
    write_lines(tmp_path / "a.jsonl", [chat(question)])
    with pytest.raises(RecipeError, match=words):
        write_split(of_files(tmp_path, "a.jsonl", **{"dataset.heldout_percent": percent}), tmp_path / "out")


def test_only_files_can_be_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no files"):
        write_split(recipe_with(), tmp_path)
