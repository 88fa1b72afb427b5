"""Run a MaxText module as `python -m` would, on a machine that other people use too.

    maxtext_launcher.py [--hf-config DIR] MODULE ARGUMENT...

Two things are changed in memory, MaxText's files never: its input pipeline no longer kills other people's
processes, and with `--hf-config` the model that `model_name=` names has the size that DIR/config.json says.
"""

from __future__ import annotations

import argparse
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

KILLER = "_cleanup_orphaned_multiprocessing_processes"


def disarm_killer(dataloading: ModuleType) -> None:
    """Replace the function that kills every multiprocessing process whose parent is pid 1, whoever owns it.

    Exits with a message when MaxText kills from another place than the one that is known.
    """
    killer = getattr(dataloading, KILLER, None)
    if not inspect.isfunction(killer):
        sys.exit(f"{dataloading.__name__} has no function {KILLER}: find where this MaxText kills processes")
    if inspect.getsource(dataloading).count("os.kill(") != inspect.getsource(killer).count("os.kill("):
        sys.exit(f"{dataloading.__name__} also kills processes outside of {KILLER}: disarm that, too")
    setattr(dataloading, KILLER, lambda: None)


def find_model_name(arguments: list[str]) -> str:
    """Return the value of `model_name=` among MaxText's arguments."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "model_name":
            return value
    sys.exit("--hf-config needs a model_name=NAME among the module's arguments")


def rename_tensors(mapping: dict[Any, Any], old: str, new: str) -> dict[Any, Any]:
    """Return a mapping of MaxText's with the prefix of Hugging Face's tensor names replaced."""

    def rename(entry: Any) -> Any:
        if isinstance(entry, str):
            return new + entry.removeprefix(old) if entry.startswith(old) else entry
        return [rename(name) for name in entry] if isinstance(entry, list) else entry

    return {rename(key): rename(value) for key, value in mapping.items()}


def rename_results(
    function: Callable[..., dict[Any, Any]], old: str, new: str
) -> Callable[..., dict[Any, Any]]:
    """Return `function` with the tensor names in what it returns renamed."""
    return lambda *arguments, **options: rename_tensors(function(*arguments, **options), old, new)


def register_model(hf_directory: Path, model_name: str) -> None:
    """Give MaxText's conversion the configuration of the checkpoint in `hf_directory` under `model_name`."""
    from maxtext.checkpoint_conversion.utils import hf_model_configs, hf_shape, param_mapping
    from transformers import AutoConfig

    configurations = hf_model_configs.HF_MODEL_CONFIGS
    if model_name not in configurations:
        sys.exit(f"MaxText converts no model {model_name!r}; it knows: {', '.join(sorted(configurations))}")
    source = AutoConfig.from_pretrained(hf_directory, local_files_only=True)
    known = configurations[model_name]
    if not hasattr(known, "text_config") or hasattr(source, "text_config"):
        configurations[model_name] = source
        return
    # The source is the text model alone: its tensors lack the prefix that they have in the multimodal one.
    known.text_config = source
    for table in (param_mapping.PARAM_MAPPING, hf_shape.HF_SHAPE):
        table[model_name] = rename_results(table[model_name], "model.language_model.", "model.")


def main() -> None:
    """Read the options before the module's name, prepare MaxText, and become the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hf-config", type=Path, metavar="DIR", help="the source checkpoint's directory")
    parser.add_argument("module", help="the MaxText module to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the module's arguments")
    options = parser.parse_args()
    from maxtext.input_pipeline import multihost_dataloading

    disarm_killer(multihost_dataloading)
    if options.hf_config is not None:
        register_model(options.hf_config, find_model_name(options.arguments))
    sys.argv = [options.module, *options.arguments]
    runpy.run_module(options.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
