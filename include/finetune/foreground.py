"""A whole run in the foreground, without Airflow: the same stages in the same order."""

from __future__ import annotations

import time
from collections.abc import Callable

from finetune.errors import PipelineError
from finetune.stages.context import RunContext
from finetune.stages.preflight import run_preflight
from finetune.stages.runner import StageRunner
from finetune.stages.teardown import create_machines, delete_machines, give_verdict, prove_nothing_left
from finetune.stages.watch import TrainingMonitor

POLL_SECONDS = 1.0
MAX_TRIES = 3

Say = Callable[[str], None]


def run_recipe(context: RunContext, say: Say) -> None:
    """Run every stage of a recipe; whatever happens, the run's machines are deleted.

    Raises:
        PipelineError: A stage failed.
    """
    done: dict[str, str | None] = {}
    try:
        run_preflight(context)
        create_machines(context)
        for stage in context.plan.stages:
            run_stage(context, stage.name, say)
            done[stage.name] = "success"
        delete_machines(context)
    finally:
        prove_nothing_left(context)
    give_verdict(context, done)


def run_stage(context: RunContext, name: str, say: Say) -> None:
    """Run one stage to its end; one that lost its job or machine is tried again."""
    for attempt in range(1, MAX_TRIES + 1):
        try:
            _run_once(context, name, say)
            return
        except PipelineError as error:
            if not error.retryable or attempt == MAX_TRIES:
                raise
            say(f"{error}\ntrying again ({attempt} of {MAX_TRIES - 1})")


def _run_once(context: RunContext, name: str, say: Say) -> None:
    runner = StageRunner(context, name)
    say(f"== {name}")
    record = runner.begin()
    if record.state != "running":
        say(f"   {record.state}: {record.reason}")
        return
    monitor = TrainingMonitor(context) if name == "train" else None
    try:
        while True:
            polled = runner.poll()
            for line in monitor.look().lines if monitor else polled.fresh_log.splitlines():
                say(f"   {line}")
            if polled.ended:
                break
            if runner.seconds_over_limit() > 0:
                raise runner.time_out()
            time.sleep(POLL_SECONDS)
    except PipelineError as error:
        runner.fail(error)
        raise
    except KeyboardInterrupt:
        runner.cancel("interrupted")
        raise
    record = runner.finish()
    say(f"   done in {record.seconds:.1f} s")
