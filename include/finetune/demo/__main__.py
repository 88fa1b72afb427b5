"""``python -m finetune.demo``: the demo, and Airflow on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.markup import escape

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal
from finetune.errors import PipelineError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The demo, and Airflow on this machine.")
console = Console(highlight=False)


@app.command()
def demo() -> None:
    """Fine-tune the demo's recipe (FINETUNE_DEMO_RECIPE) through Airflow and show what came out."""
    from finetune.demo.demo import Demo

    raise typer.Exit(Demo(AirflowLocal.from_settings(), settings.demo_recipe(), console).run())


@app.command()
def start() -> None:
    """Start Airflow on this machine unless it runs."""
    airflow = AirflowLocal.from_settings()
    with console.status("Starting Airflow"):
        fresh = airflow.start()
    console.print("Airflow is up." if fresh else "Airflow was up already.")
    print_access(airflow)


@app.command()
def stop() -> None:
    """Stop Airflow, and the runs that are going on with their jobs and machines."""
    from finetune.demo.shutdown import describe_orphans, shut_down

    airflow = AirflowLocal.from_settings()
    stopped = shut_down(airflow, console)
    console.print("Airflow was stopped; nothing of it is left." if stopped else "Airflow was not running.")
    for orphan in describe_orphans(airflow):
        console.print(orphan, style="yellow", soft_wrap=True)


@app.command()
def status() -> None:
    """Say whether Airflow runs on this machine, where, and how to log in; exit code 1 when it does not."""
    airflow = AirflowLocal.from_settings()
    running, missing = airflow.running, airflow.missing_components()
    if running is None:
        console.print("Airflow is not running.")
        raise typer.Exit(1)
    if missing:
        console.print(f"Airflow is not whole: {', '.join(missing)} ended. Next: make start", style="red")
        raise typer.Exit(1)
    processes = airflow.processes()
    console.print(
        f"Airflow is up since {running.started_at.astimezone():%Y-%m-%d %H:%M}: {len(processes)} processes"
    )
    print_access(airflow)


def print_access(airflow: AirflowLocal) -> None:
    """Print the UI's address and login."""
    console.print(f"  address  {airflow.base_url}")
    console.print(f"  login    {airflow.username} / {escape(airflow.secrets.admin_password)}")
    console.print("  stop it  make stop")


def main(run: Callable[[], None] = app) -> None:
    """Run a command; a failure that is explained is printed without a traceback."""
    try:
        run()
    except PipelineError as error:
        Console(stderr=True, highlight=False).print(escape(str(error)), style="red", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
