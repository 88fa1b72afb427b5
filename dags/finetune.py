"""One Airflow DAG for each recipe; a broken recipe is reported by recipe_errors.py and hides no other."""

from finetune import settings
from finetune.recipe import Recipe, load_recipes
from finetune_airflow.factory import make_dag

for path, recipe in load_recipes(settings.recipes_dir()).items():
    if isinstance(recipe, Recipe):
        dag = make_dag(recipe, path)
        globals()[dag.dag_id] = dag
