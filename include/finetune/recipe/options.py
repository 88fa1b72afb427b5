"""Check what a recipe passes on to MaxText."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.recipe.base import Problem
from finetune.recipe.suggest import did_you_mean, list_names, show_value
from finetune.trainers.maxtext_options import MaxTextOptions, load_options

_BY_THE_RUN = "is set by the run itself; remove it"
_DATASET = "is set from the section `dataset`; write it there"
_MODEL_SOURCE = "is set from model.source; write it there"

RESERVED_OPTIONS: Mapping[str, str] = {
    "base_config": _BY_THE_RUN,
    "run_name": _BY_THE_RUN,
    "base_output_directory": "is set from `store`; write it there",
    "metrics_file": _BY_THE_RUN,
    "jax_cache_dir": _BY_THE_RUN,
    "log_config": _BY_THE_RUN,
    "hardware": "is set from `machines`; write it there",
    "skip_jax_distributed_system": "is set from `machines`; write it there",
    "hf_access_token": "must never be in a recipe: give the token as the environment variable HF_TOKEN",
    "enable_tensorboard": "stays off, because MaxText writes the Hub token into the TensorBoard files; the"
    " metrics are in the run's events",
    "save_config_to_gcs": "stays off, because MaxText writes the Hub token into the configuration that it saves",
    "gradient_accumulation_steps": "is refused: training fails with the published tunix; raise"
    " trainer.per_device_batch_size instead",
    "model_name": "is set from model.maxtext_name; write it there",
    "override_model_config": "is set as soon as model.overrides has an entry; write the options there",
    "load_parameters_path": _MODEL_SOURCE,
    "load_full_state_path": _MODEL_SOURCE,
    "tokenizer_path": _MODEL_SOURCE,
    "use_multimodal": "stays off: this version fine-tunes on text only",
    "scan_layers": "is the same for conversion, training and export, and set by the run; remove it",
    "checkpoint_storage_use_zarr3": _BY_THE_RUN,
    "checkpoint_storage_use_ocdbt": _BY_THE_RUN,
    "enable_checkpointing": "stays on: a run without checkpoints cannot be resumed or exported",
    "max_num_checkpoints_to_keep": _BY_THE_RUN,
    "checkpoint_period": "is set from trainer.checkpoint_period; write it there",
    "steps": "is set from trainer.steps; write it there",
    "per_device_batch_size": "is set from trainer.per_device_batch_size; write it there",
    "max_target_length": "is set from trainer.max_target_length; write it there",
    "learning_rate": "is set from trainer.learning_rate; write it there",
    "num_epoch": "follows from trainer.steps and the dataset's size; remove it",
    "data_shuffle_seed": "is set from trainer.seed; write it there",
    "init_weights_seed": "is set from trainer.seed; write it there",
    "eval_interval": "is set from trainer.eval: there is one evaluation, at the end",
    "eval_steps": "is set from trainer.eval.steps; write it there",
    "eval_per_device_batch_size": "is set from trainer.eval.per_device_batch_size; write it there",
    "use_sft": "follows from trainer.kind; remove it",
    "use_dpo": "follows from trainer.kind, and maxtext-sft does not train on preferences; remove it",
    "dataset_type": _DATASET,
    "dataset_path": _DATASET,
    "hf_path": _DATASET,
    "hf_name": _DATASET,
    "hf_data_dir": _DATASET,
    "hf_train_files": _DATASET,
    "hf_eval_files": _DATASET,
    "train_split": _DATASET,
    "eval_split": _DATASET,
    "hf_eval_split": _DATASET,
    "train_data_columns": _DATASET,
    "eval_data_columns": _DATASET,
}
"""MaxText options that the product sets, and what to write instead."""

REFUSED_PREFIXES: Mapping[str, str] = {
    "lora.": "is refused: MaxText's export of a LoRA run silently leaves the adapter out, so the model would"
    " be untrained",
    "dpo.": "is refused: maxtext-sft does not train on preferences",
}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (tuple, list),
}


def check_options(options: Mapping[str, Any], version: str) -> list[Problem]:
    """Return what is wrong with the options passed on to MaxText; paths are option names."""
    known = load_options(version)
    problems: list[Problem] = []
    for name, value in options.items():
        message = _refuse(name, known) or _check_value(name, value, known.options[name])
        if message:
            problems.append(Problem((name,), message))
    return problems


def _refuse(name: str, known: MaxTextOptions) -> str | None:
    """Return why an option may not be set here at all."""
    if name in RESERVED_OPTIONS:
        return RESERVED_OPTIONS[name]
    for prefix, reason in REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return reason
    if name not in known.options:
        settable = [option for option in known.options if option not in RESERVED_OPTIONS]
        return f"is no option of MaxText {known.version}.{did_you_mean(name, settable)}"
    if name in known.architecture_options:
        return "belongs to the model's architecture; set it in model.overrides"
    return None


def _check_value(name: str, value: Any, keywords: Mapping[str, Any]) -> str | None:
    """Return why MaxText would not take a value, as far as its table tells."""
    given = f"given {show_value(value, name)}"
    if value is None:
        return (
            None
            if keywords.get("nullable") or "type" not in keywords
            else f"{given}; must be {keywords['type']}"
        )
    if "enum" in keywords:
        allowed = [str(item) for item in keywords["enum"]]
        if value in keywords["enum"]:
            return None
        return (
            f"{given}; allowed: {list_names(repr(item) for item in allowed)}.{did_you_mean(value, allowed)}"
        )
    kind = keywords.get("type")
    if kind == "object":
        return "is a mapping, which cannot be passed on from a recipe"
    if kind is not None and (
        not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return f"{given}; must be of type {kind}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    limits = (
        ("minimum", value < keywords.get("minimum", value), "at least"),
        ("exclusiveMinimum", value <= keywords.get("exclusiveMinimum", value - 1), "more than"),
        ("maximum", value > keywords.get("maximum", value), "at most"),
        ("exclusiveMaximum", value >= keywords.get("exclusiveMaximum", value + 1), "less than"),
    )
    broken = [f"{words} {keywords[keyword]}" for keyword, outside, words in limits if outside]
    return f"{given}; must be {' and '.join(broken)}" if broken else None


def check_model_options(options: Mapping[str, Any], maxtext_name: str, version: str) -> list[Problem]:
    """Return the options that MaxText refuses because the model's own table sets them."""
    own = load_options(version).models.get(maxtext_name, frozenset())
    message = f"is set by MaxText's table of {maxtext_name}; to change it, write it in model.overrides"
    return [Problem((name,), message) for name in options if name in own]
