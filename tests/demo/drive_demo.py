"""The demo over the toy DAG, as a program of its own: a terminal's signals go to it."""

import sys

from conftest import TOY_DAGS, TOY_RECIPE
from rich.console import Console

from finetune.demo.__main__ import main
from finetune.demo.airflow_local import AirflowLocal
from finetune.demo.demo import Demo

if __name__ == "__main__":
    demo = Demo(AirflowLocal(dags=TOY_DAGS), TOY_RECIPE, Console(highlight=False))
    main(lambda: sys.exit(demo.run()))
