"""Every setting that comes from the environment, read in this one place."""

from __future__ import annotations

import os
from pathlib import Path

from finetune.errors import PipelineError

PROJECT_ROOT = Path(__file__).resolve().parents[2]
INCLUDE_DIR = PROJECT_ROOT / "include"
ON_MACHINE_DIR = INCLUDE_DIR / "on_machine"
REQUIREMENTS_DIR = INCLUDE_DIR / "requirements"
MAX_PORT = 65535


def home_dir() -> Path:
    """Return where this installation keeps its state: ``FINETUNE_HOME``, else ``.finetune`` beside the code."""
    return Path(os.environ.get("FINETUNE_HOME") or PROJECT_ROOT / ".finetune").absolute()


def recipes_dir() -> Path:
    """Return the folder of recipes: ``FINETUNE_RECIPES_DIR``, else ``include/recipes``."""
    return Path(os.environ.get("FINETUNE_RECIPES_DIR") or INCLUDE_DIR / "recipes").absolute()


def default_store_url() -> str:
    """Return the store of recipes that name none: ``FINETUNE_STORE``, else a folder of ``home_dir()``."""
    return os.environ.get("FINETUNE_STORE") or f"file://{home_dir()}/store"


def local_machines_dir() -> Path:
    """Return the folder in which every local machine has its working directory."""
    return home_dir() / "machines"


def database_url() -> str | None:
    """Return the metadata database of the Airflow started here: ``FINETUNE_DATABASE_URL``, else None for SQLite."""
    return os.environ.get("FINETUNE_DATABASE_URL") or None


def airflow_port() -> int:
    """Return the preferred port of the Airflow started here: ``FINETUNE_AIRFLOW_PORT``, else 8080.

    Raises:
        PipelineError: The variable is not a port.
    """
    text = os.environ.get("FINETUNE_AIRFLOW_PORT") or "8080"
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise PipelineError(
            f"FINETUNE_AIRFLOW_PORT is {text!r}, not a port",
            left="nothing was started",
            next_step=f"set it to a number from 1 to {MAX_PORT}, to 0 for any free port, or not at all",
        )
    return int(text)


def demo_recipe() -> str:
    """Return the recipe that the demo runs: ``FINETUNE_DEMO_RECIPE``, else the 270M chat model."""
    return os.environ.get("FINETUNE_DEMO_RECIPE") or "gemma3-270m-chat-local"
