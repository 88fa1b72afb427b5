"""One Airflow DAG for each recipe; a broken recipe is reported by recipe_errors.py and hides no other."""

from airflow.sdk import get_parsing_context

from finetune import settings
from finetune_airflow.factory import make_dags

# The process of a task asks for the DAG of its own recipe, and need not read the others.
globals().update(make_dags(settings.recipes_dir(), get_parsing_context().dag_id))
