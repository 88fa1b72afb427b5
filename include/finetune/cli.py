"""The command line: validate, plan and run recipes without Airflow, and look at runs."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from finetune import settings
from finetune.errors import PipelineError
from finetune.foreground import run_recipe
from finetune.plan import make_plan
from finetune.recipe import Recipe, load_recipe, load_recipes
from finetune.stages.context import RunContext, recipe_path
from finetune.store import RunStore, Store

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Fine-tune language models from recipes."
)
console = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

RecipeArgument = Annotated[str, typer.Argument(help="A recipe's name, or the path of its file.")]


@app.command()
def validate(
    recipes: Annotated[list[str] | None, typer.Argument(help="Names or paths; all when left out.")] = None,
) -> None:
    """Check recipes and say what is wrong with them."""
    paths = [find_recipe(name) for name in recipes or []]
    outcomes = {path: load_or_error(path) for path in paths} or load_recipes(settings.recipes_dir())
    for path, outcome in outcomes.items():
        if isinstance(outcome, Recipe):
            console.print(f"{outcome.name}: valid")
        else:
            errors.print(f"{path.name}: {outcome}", markup=False)
    if any(not isinstance(outcome, Recipe) for outcome in outcomes.values()):
        raise typer.Exit(1)


@app.command()
def plan(recipe: RecipeArgument, run_id: Annotated[str, typer.Option(help="The run's id.")] = "RUN") -> None:
    """Print every stage of a recipe with the exact commands that it runs."""
    try:
        made = make_plan(load_recipe(find_recipe(recipe)), run_id)
    except PipelineError as error:
        raise fail(error) from error
    for stage in made.stages:
        machine = "this machine" if stage.role == "worker" else made.recipe.machine_for(stage.role).kind
        console.print(
            f"# {stage.name}: on {machine}, at most {stage.limit_seconds / 60:.0f} minutes", markup=False
        )
        for name, path in stage.outputs.items():
            console.print(f"#   makes {name}: {path}", markup=False)
        for key, value in stage.env.items():
            console.print(f"export {key}={value}", markup=False)
        for step in stage.steps:
            console.print(
                f"\n# {stage.name} / {step.name}" + (" (once, then reused)" if step.output else ""),
                markup=False,
            )
            for command in step.commands:
                console.print(command, markup=False)
        console.print()


@app.command()
def run(
    recipe: RecipeArgument,
    run_id: Annotated[str | None, typer.Option(help="The run's id; to go on with a run, its id.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, a field to change for this run.")
    ] = None,
) -> None:
    """Run a whole recipe in the foreground, without Airflow: the same stages, the same checks."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = run_id or f"cli-{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
    try:
        context = RunContext.load(find_recipe(recipe), name, dict(map(parse_param, param or [])))
        run_recipe(context, lambda line: console.print(line, markup=False))
    except PipelineError as error:
        raise fail(error) from error
    except KeyboardInterrupt as error:
        errors.print(
            "stopped: the run's machines and jobs are gone; its records are in the store", markup=False
        )
        raise typer.Exit(130) from error
    show_run(context.store)


@app.command()
def runs(recipe: Annotated[str | None, typer.Argument(help="Only this recipe's.")] = None) -> None:
    """List the runs in the store, the newest first."""
    table = Table("recipe", "run", "started", "stages done", "held-out loss before", "after", box=None)
    for store in known_runs(recipe):
        record = store.read_run()
        stages = store.read_stages()
        done = sum(stage.succeeded for stage in stages)
        check = next((stage.evidence for stage in stages if stage.stage == "check_model"), {})
        figures = [
            f"{check[key]:.3f}" if check.get(key) else ""
            for key in ("heldout_loss_before", "heldout_loss_after")
        ]
        started = f"{record.started_at:%Y-%m-%d %H:%M}"
        table.add_row(record.recipe_name, record.run_id, started, f"{done}/{len(stages)}", *figures)
    console.print(table)


@app.command()
def show(run_id: Annotated[str, typer.Argument(help="A run's id.")]) -> None:
    """Show what a run did, stage by stage."""
    found = [store for store in known_runs() if store.read_run().run_id == run_id]
    if not found:
        errors.print(f"there is no run {run_id!r}; `python -m finetune runs` lists them", markup=False)
        raise typer.Exit(1)
    show_run(found[0])


def known_runs(recipe: str | None = None) -> list[RunStore]:
    """Return the runs of the default store, and of those on this machine that recipes name, the newest first."""
    outcomes = load_recipes(settings.recipes_dir()).values()
    named = {outcome.store_url() for outcome in outcomes if isinstance(outcome, Recipe)}
    urls = {settings.default_store_url(), *(url for url in named if url.startswith("file://"))}
    try:
        found = [run for url in urls for run in Store(url).runs(recipe)]
        return sorted(found, key=lambda run: run.read_run().started_at, reverse=True)
    except PipelineError as error:
        raise fail(error) from error


def show_run(store: RunStore) -> None:
    """Print a run's stages, and the figures of its check."""
    table = Table("stage", "state", "seconds", "what", box=None)
    for stage in store.read_stages():
        what = (stage.error or "").split("\n")[0] or stage.reason or ", ".join(stage.outputs.values())
        table.add_row(stage.stage, stage.state, f"{stage.seconds or 0:.1f}", what)
    console.print(table)
    for stage in store.read_stages():
        if stage.stage == "check_model" and stage.evidence:
            console.print(json.dumps(stage.evidence, indent=2, ensure_ascii=False), markup=False)


def find_recipe(name: str) -> Path:
    """Return a recipe's file, from its name or path."""
    path = Path(name)
    try:
        return path.absolute() if path.suffix in (".yaml", ".yml") else recipe_path(name)
    except PipelineError as error:
        raise fail(error) from error


def load_or_error(path: Path) -> Recipe | PipelineError:
    """Return a recipe, or why it cannot be read."""
    try:
        return load_recipe(path)
    except PipelineError as error:
        return error


def parse_param(text: str) -> tuple[str, object]:
    """Return a parameter's name and its value, a JSON value where it is one."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def fail(error: PipelineError) -> typer.Exit:
    """Print an error for a person and return the exit."""
    errors.print(str(error), markup=False)
    return typer.Exit(1)
