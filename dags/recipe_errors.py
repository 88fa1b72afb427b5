"""No DAG: the import error that tells Airflow's users which recipes are broken, and how."""

from finetune import settings
from finetune.errors import RecipeError
from finetune.recipe import load_recipes

broken = [error for error in load_recipes(settings.recipes_dir()).values() if isinstance(error, RecipeError)]
if broken:
    raise RecipeError("\n".join(str(error) for error in broken))
