"""What all tasks of a recipe's DAG share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from finetune_airflow.run import load_run

if TYPE_CHECKING:
    from airflow.sdk import Context

    from finetune.stages.context import RunContext


class RecipeOperator(BaseOperator):
    """A task of a recipe's DAG.

    Args:
        recipe_path: The recipe's file.
        param_names: Which of the DAG's params are fields of the recipe.
    """

    def __init__(self, *, recipe_path: str, param_names: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe_path = recipe_path
        self.param_names = param_names

    def read_params(self, context: Context) -> dict[str, Any]:
        """Return the run's values of the recipe's fields."""
        return {name: context["params"][name] for name in self.param_names}

    def load_run(self, context: Context) -> RunContext:
        """Return the run that this task is of."""
        run_id = str(context["dag_run"].run_id)
        return load_run(self.recipe_path, run_id, self.read_params(context))
