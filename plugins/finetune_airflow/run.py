"""The bridge between an Airflow task and a run of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from finetune.errors import PipelineError

if TYPE_CHECKING:
    from finetune.stages.context import RunContext


def load_run(recipe_path: str, run_id: str, params: Mapping[str, Any]) -> RunContext:
    """Return the run of a recipe; imported late, since a DAG file reaches this module."""
    from finetune.stages.context import RunContext

    return RunContext.load(Path(recipe_path), run_id, params)


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure of the pipeline into one of the task: tried again only where that can help."""
    try:
        yield
    except PipelineError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(str(error)) from error
