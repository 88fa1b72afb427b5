"""YAML is read the way people expect it, and what cannot be read is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.errors import RecipeError
from finetune.recipe import load_recipe, parse_recipe
from finetune.recipe.yaml_text import YamlProblem, read_yaml

PLAIN_VALUES: list[tuple[str, Any]] = [
    ("2e-5", 2e-5),
    ("2.0e-5", 2e-5),
    ("1E3", 1000.0),
    ("-.5", -0.5),
    ("10_000", 10_000),
    ("010", 10),
    ("-3", -3),
    ("on", "on"),
    ("no", "no"),
    ("yes", "yes"),
    ("true", True),
    ("False", False),
    ("~", None),
    ("null", None),
    ("", None),
    ("1:30", "1:30"),
    ("2026-01-02", "2026-01-02"),
    ("0.2.5", "0.2.5"),
    ("'5'", "5"),
    (".inf", float("inf")),
    ("1e", "1e"),
]


@pytest.mark.parametrize(("text", "value"), PLAIN_VALUES)
def test_plain_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = read_yaml(f"key: {text}").data["key"]
    assert found == value
    assert type(found) is type(value)


def test_a_learning_rate_without_a_dot_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\n"
        "model: {maxtext_name: gemma3-4b, source: {bundled: tiny}}\n"
        "dataset: {source: {bundled: chatterbot}}\n"
        "trainer: {kind: maxtext-sft, steps: 10_000, learning_rate: 2e-5}\n"
        "machines: {tpu: {kind: local}}\n"
    )
    trainer = load_recipe(path).trainer
    assert (trainer.learning_rate, trainer.steps) == (2e-5, 10_000)


BROKEN: list[tuple[str, list[str]]] = [
    ("name: [a\n", ["line 2, column 1", "not valid YAML"]),
    ("name: a\n\tb: c\n", ["line 2, column 1", "spaces, not tabs"]),
    ("schedule: * 2 * * *\n", ["line 1", "needs quotes"]),
    ("description: a: b\n", ["line 1, column 15", "needs quotes"]),
    ("name: a\nowner: b\nname: c\n", ["line 3", "gives the key `name` twice, first on line 1"]),
    ("trainer:\n  steps: 1\n  steps: 2\n", ["line 3", "gives the key `steps` twice"]),
    ("a: &x\n  b: *x\n", ["an anchor that contains itself"]),
    ("name: a\n---\nname: b\n", ["line 2", "another document"]),
    ("name: !!python/object:os.system x\n", ["line 1", "not valid YAML"]),
    ("? [a, b]\n: c\n", ["line 1", "key that is not a plain word"]),
    ("name: \x00\n", ["character that YAML does not allow"]),
    ("", ["is empty; a recipe needs name, model, dataset, trainer and machines"]),
    ("# nothing yet\n", ["is empty"]),
    ("- name: a\n", ["holds a list; a recipe is a mapping"]),
    ("just words\n", ["holds a str; a recipe is a mapping"]),
]


@pytest.mark.parametrize(("text", "words"), BROKEN, ids=[text[:20] for text, _ in BROKEN])
def test_a_text_that_is_no_recipe_is_explained(text: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, Path("/recipes/small.yaml"))
    assert "small.yaml has a problem" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_deeply_nested_text_is_refused_in_words() -> None:
    with pytest.raises(YamlProblem):
        read_yaml("[" * 5000)


def test_many_references_to_one_anchor_cost_nothing() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(RecipeError) as caught:
        parse_recipe("\n".join(lines), Path("/recipes/small.yaml"))
    assert "a29: is no field of a recipe" in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_every_problem_comes_with_its_line() -> None:
    text = (
        "name: small\n"
        "model:\n"
        "  maxtext_name: gemma3-4\n"
        "  source:\n"
        "    bundled: tiny\n"
        "dataset:\n"
        "  source:\n"
        "    files:\n"
        "      - a.jsonl\n"
        "      - b.csv\n"
        "trainer:\n"
        "  kind: maxtext-sft\n"
        "  step: 5\n"
        "machines:\n"
        "  tpu: {kind: local, threads: 0}\n"
    )
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, Path("/recipes/small.yaml"))
    lines = [line.split(": ")[:2] for line in caught.value.cause.splitlines()[1:]]
    assert lines == [
        ["  - line 3", "model.maxtext_name"],
        ["  - line 10", "dataset.source.files[1]"],
        ["  - line 11", "trainer.steps"],
        ["  - line 13", "trainer.step"],
        ["  - line 15", "machines.tpu.threads"],
    ]


def test_anchors_and_merge_keys_work() -> None:
    data = read_yaml("a: &base {x: 1, y: 2}\nb: {<<: *base, y: 3}\n").data
    assert data["b"] == {"x": 1, "y": 3}
