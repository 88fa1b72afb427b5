"""What a person sees in Airflow's pages, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.screenshot import open_page, take

from finetune.recipe import load_recipe, run_params
from finetune.settings import PROJECT_ROOT
from tests.e2e.conftest import RUN_SECONDS, Pipeline

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * RUN_SECONDS)]


def test_the_trigger_form_shows_every_field_that_may_change_for_one_run(
    pipeline: Pipeline, first_run: str
) -> None:
    recipe = load_recipe(PROJECT_ROOT / "include" / "recipes" / "tiny-local.yaml")
    params = list(run_params(recipe).values())
    with open_page(pipeline.airflow) as page:
        page.goto(f"{pipeline.airflow.base_url}/dags/{pipeline.dag_id(first_run)}")
        page.get_by_role("button", name="Trigger").first.click()
        form = page.get_by_role("dialog")
        for section in {param.section for param in params}:
            form.get_by_role("button", name=section).click()
            for param in params:
                if param.section == section:
                    form.get_by_text(param.description).wait_for()
                    assert param.title in form.inner_text().splitlines()
            form.get_by_role("button", name=section).click()


def test_the_readmes_picture_can_be_taken_of_a_run(
    pipeline: Pipeline, first_run: str, tmp_path: Path
) -> None:
    picture = tmp_path / "run.png"
    take(pipeline.airflow, pipeline.dag_id(first_run), first_run, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
