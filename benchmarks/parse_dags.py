"""Time of parsing the DAGs of 50 recipes over importing Airflow alone, each in fresh processes, in turns."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from finetune import settings

RECIPES = 50
ROUNDS = 5
PROMISED_SECONDS = 1.0
# What a DAG file must not import: seconds and hundreds of megabytes each.
HEAVY_MODULES = (
    "torch",
    "jax",
    "transformers",
    "google.cloud",
    "paramiko",
    "asyncssh",
    "pyarrow",
    "matplotlib",
)
IMPORT_AIRFLOW = """
import time
started = time.perf_counter()
import airflow.sdk
from airflow.dag_processing.dagbag import DagBag
print(time.perf_counter() - started)
"""
PARSE_FOLDER = f"""
import sys, time
from airflow.dag_processing.dagbag import DagBag
import airflow.sdk
started = time.perf_counter()
bag = DagBag({str(settings.PROJECT_ROOT / "dags")!r}, bundle_path=None)
seconds = time.perf_counter() - started
assert not bag.import_errors, bag.import_errors
heavy = [name for name in {HEAVY_MODULES!r} if name in sys.modules]
assert not heavy, heavy
print(seconds, len([name for name in bag.dags if name.startswith("finetune_")]))
"""


def make_recipes(folder: Path) -> None:
    """Write 50 recipes that differ in their names only."""
    template = (settings.INCLUDE_DIR / "recipes" / "tiny-local.yaml").read_text()
    for number in range(RECIPES):
        name = f"tiny-{number:02d}"
        text = template.replace("name: tiny-local", f"name: {name}", 1)
        (folder / f"{name}.yaml").write_text(text)


def run_python(code: str, environment: dict[str, str]) -> list[float]:
    """Run a program in a fresh process and return the numbers on its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return [float(number) for number in done.stdout.splitlines()[-1].split()]


def main() -> int:
    """Measure, print, and return 1 when the promise does not hold."""
    home = Path(tempfile.mkdtemp(prefix="finetune-bench-"))
    try:
        recipes = home / "recipes"
        recipes.mkdir()
        make_recipes(recipes)
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.PROJECT_ROOT / "plugins"),
            "FINETUNE_RECIPES_DIR": str(recipes),
        }
        importing, parsing = [], []
        for _ in range(ROUNDS):
            importing += run_python(IMPORT_AIRFLOW, environment)
            seconds, dags = run_python(PARSE_FOLDER, environment)
            assert dags == RECIPES, f"{dags} DAGs of {RECIPES} recipes"
            parsing.append(seconds)
    finally:
        shutil.rmtree(home)
    middle = statistics.median(parsing)
    print(f"importing Airflow:           {statistics.median(importing):.2f} s (median of {ROUNDS})")
    print(
        f"parsing {RECIPES} recipes' DAGs:     {middle:.2f} s more (promised: at most {PROMISED_SECONDS} s)"
    )
    return int(middle > PROMISED_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
