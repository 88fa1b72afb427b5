"""Take a picture of a run in the Airflow that runs here: ``make screenshot``.

Drives Debian's Chromium (or whatever ``chromium`` is on PATH) through Playwright: logs in, and opens the newest
finished run of the demo's recipe.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from finetune import settings
from finetune.demo.airflow_local import AirflowLocal

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZE = {"width": 1500, "height": 860}
TIMEOUT_MILLISECONDS = 60_000


def log_in(page: Page, airflow: AirflowLocal) -> None:
    """Log in as the administrator."""
    page.goto(f"{airflow.base_url}/auth/login/")
    page.fill("input[name=username]", airflow.username)
    page.fill("input[name=password]", airflow.secrets.admin_password)
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/auth/" not in url)
    page.wait_for_load_state("networkidle")


@contextmanager
def open_page(airflow: AirflowLocal) -> Iterator[Page]:
    """Yield a page of a browser that is logged in."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no chromium on PATH. Next: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        log_in(page, airflow)
        yield page
        browser.close()


def take(airflow: AirflowLocal, dag_id: str, run_id: str, out: Path) -> None:
    """Write a PNG of a run's page with its tasks."""
    with open_page(airflow) as page:
        page.goto(f"{airflow.base_url}/dags/{dag_id}/runs/{run_id}")
        page.get_by_text("verdict").first.wait_for()
        page.wait_for_load_state("networkidle")
        out.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=out)


def main() -> None:
    """Picture the newest successful run of the demo's recipe."""
    airflow = AirflowLocal.from_settings()
    if airflow.running is None:
        sys.exit("Airflow does not run here. Next: make demo")
    dag_id = f"finetune_{settings.demo_recipe()}"
    runs = airflow.api.dag_runs(dag_id, states=["success"])
    if not runs:
        sys.exit(f"no successful run of {dag_id}. Next: make demo")
    newest = max(runs, key=lambda run: str(run.end_date))
    out = settings.PROJECT_ROOT / "docs" / "run.png"
    take(airflow, dag_id, newest.dag_run_id, out)
    print(out)


if __name__ == "__main__":
    main()
