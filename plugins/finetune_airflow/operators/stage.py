"""The task of one stage: begin, wait deferred, finish by evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from finetune.errors import ConnectionLost, PipelineError
from finetune_airflow.operators.base import RecipeOperator
from finetune_airflow.run import explained
from finetune_airflow.triggers.job import JobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from finetune.stages.runner import StageRunner


class StageOperator(RecipeOperator):
    """Runs one stage of a recipe on the machine that it needs, without holding a worker while it waits.

    Args:
        stage: The stage's name; the task's id unless given.
    """

    def __init__(self, *, stage: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stage = stage or self.task_id
        self._runner: StageRunner | None = None

    def execute(self, context: Context) -> str:
        """Begin the stage, or find that its work is done; returns the path of its record."""
        with explained():
            runner = self._make_runner(context)
            self._runner = runner
            try:
                record = runner.begin()
            except ConnectionLost:
                raise  # nothing is known of the job, which may run: the next try takes it up
            except PipelineError as error:
                runner.fail(error)
                raise
        if record.state != "running":
            self.log.info("%s: %s", record.state, record.reason)
            return runner.record_uri
        self.log.info("job %s: %s", record.job, record.reason or "started")
        self._wait(context, runner)

    def complete(self, context: Context, event: dict[str, Any]) -> str:
        """Take the job's result, or go on waiting for it; returns the path of the stage's record."""
        with explained():
            runner = self._make_runner(context)
            if event["state"] == "timed_out":
                error = runner.time_out()
                runner.fail(error)
                raise error
            record = runner.finish()
        if record.state == "running":
            self.log.info("the job still runs")
            self._wait(context, runner)
        self.log.info("done in %.1f s: %s", record.seconds, record.evidence)
        return runner.record_uri

    def _wait(self, context: Context, runner: StageRunner) -> NoReturn:
        self.defer(
            trigger=JobTrigger(
                recipe_path=self.recipe_path,
                run_id=runner.context.run_id,
                params=self.read_params(context),
                stage=self.stage,
            ),
            method_name="complete",
        )

    def on_kill(self) -> None:
        """End the job when the task is ended while it holds a worker."""
        if self._runner is not None:
            self._runner.cancel("the task was ended")

    def _make_runner(self, context: Context) -> StageRunner:
        from finetune.stages.runner import StageRunner

        return StageRunner(self.load_run(context), self.stage)
