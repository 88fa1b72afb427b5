"""What Airflow parses again and again must cost little: nothing heavy is imported on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune import settings
from tests.fakes.recipes import write_recipe

HEAVY = [
    "jax",
    "torch",
    "transformers",
    "google",
    "pyarrow",
    "matplotlib",
    "maxtext",
    "datasets",
    "huggingface_hub",
]
PROGRAM = f"""
import json, runpy, sys
for path in sys.argv[1:]:
    made = runpy.run_path(path)
heavy = [name for name in {HEAVY} if name in sys.modules]
dags = sorted({{value.dag_id for value in made.values() if type(value).__name__ == "DAG"}})
print(json.dumps({{"heavy": heavy, "dags": dags}}))
"""


def run_python(program: str, *arguments: str, recipes: Path, home: Path) -> dict[str, list[str]]:
    """Run a program in a fresh interpreter as Airflow's processes would; returns what it prints as JSON."""
    root = settings.PROJECT_ROOT
    environment = os.environ | {
        "PYTHONPATH": f"{settings.INCLUDE_DIR}{os.pathsep}{root / 'plugins'}",
        "FINETUNE_RECIPES_DIR": str(recipes),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Whatever Airflow itself imports of its providers is none of this project's.
        "AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": "True",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("file", ["finetune.py", "recipe_errors.py"])
def test_a_dag_file_imports_nothing_heavy(tmp_path: Path, file: str) -> None:
    recipes = settings.INCLUDE_DIR / "recipes"
    answer = run_python(PROGRAM, str(settings.PROJECT_ROOT / "dags" / file), recipes=recipes, home=tmp_path)
    assert answer["heavy"] == []


def test_the_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    plugin = settings.PROJECT_ROOT / "plugins" / "finetune_plugin.py"
    answer = run_python(PROGRAM, str(plugin), recipes=settings.INCLUDE_DIR / "recipes", home=tmp_path)
    assert answer["heavy"] == []


def test_a_heavy_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "heavy.py"
    file.write_text("import pyarrow\n")
    assert run_python(PROGRAM, str(file), recipes=tmp_path, home=tmp_path)["heavy"] == ["pyarrow"]


def test_each_recipe_becomes_one_dag_and_a_broken_one_hides_none(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    for name in ("one", "two"):
        write_recipe(recipes, name)
    write_recipe(recipes, "broken", {"trainer.step": 3})
    dags = settings.PROJECT_ROOT / "dags"
    answer = run_python(PROGRAM, str(dags / "finetune.py"), recipes=recipes, home=tmp_path)
    assert answer["dags"] == ["finetune_one", "finetune_two"]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_python(PROGRAM, str(dags / "recipe_errors.py"), recipes=recipes, home=tmp_path)
    assert "broken.yaml has a problem" in caught.value.stderr
    assert "trainer.step: is no field of trainer. Did you mean `steps`?" in caught.value.stderr
