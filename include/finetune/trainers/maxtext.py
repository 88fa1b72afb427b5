"""MaxText's supervised fine-tuning: the commands for conversion, training and export.

Every function is pure: from a recipe and a layout to command lines. The flags are those of MaxText's own tutorial for
``maxtext.trainers.post_train.sft.train_sft``; a comment stands beside each one that is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune import settings
from finetune.layout import Layout, content_digest
from finetune.recipe import Recipe
from finetune.steps import Step, command
from finetune.trainers import artifacts
from finetune.trainers.maxtext_options import load_options
from finetune.trainers.training_data import TrainingData

METRICS_FILE = "metrics.jsonl"

# Flash attention needs a TPU; a data worker process takes 30 to 45 s to start on a small machine; saving a checkpoint
# in the background holds a copy of it in memory (12 GB instead of 10 at 270M parameters).
CPU_OPTIONS: Mapping[str, Any] = {
    "attention": "dot_product",
    "grain_worker_count": 0,
    "async_checkpointing": False,
}


@dataclass(frozen=True)
class MaxText:
    """MaxText's commands for one recipe.

    Args:
        recipe: The recipe, with the run's params applied.
        layout: Where things stand on the machine and in the store.
        hardware: ``cpu`` on a local machine, ``tpu`` elsewhere.
    """

    recipe: Recipe
    layout: Layout
    hardware: str

    @property
    def environment(self) -> Step:
        """The step that builds MaxText's environment."""
        return artifacts.environment(self.recipe, self.layout, self.hardware)

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return f"{self.environment.output}/bin/python"

    @property
    def model_dir(self) -> str:
        """The source model's Hugging Face directory."""
        return artifacts.source_model_path(self.recipe, self.layout)

    def prepare(self) -> list[Step]:
        """Return the steps that every stage begins with, and that cost nothing once their artifacts stand."""
        source = artifacts.source_model(self.recipe, self.layout, self.python)
        return [self.environment, *([source] if source else [])]

    @property
    def conversion(self) -> Step:
        """The step that converts the source model to MaxText's format, shared by all runs that need the same."""
        arguments = [
            *self._common_arguments(),
            'base_output_directory="$NEW"',
            "checkpoint_storage_use_zarr3=1",
            "checkpoint_storage_use_ocdbt=1",
            f"--hf_model_path={self.model_dir}",
        ]
        digest = content_digest(
            [
                "conversion",
                arguments,
                artifacts.source_model_identity(self.recipe, self.layout),
                self.environment.output,
            ],
            settings.ON_MACHINE_DIR / "maxtext_launcher.py",
        )
        run = self._module("maxtext.checkpoint_conversion.to_maxtext", arguments)
        return Step("conversion", (run, 'test -e "$NEW/0/items"'), self.layout.cached("checkpoints", digest))

    def training(self, data: TrainingData) -> Step:
        """Return the step that fine-tunes; it resumes from the last checkpoint of its own directory."""
        run = self._module("maxtext.trainers.post_train.sft.train_sft", self._training_arguments(data))
        return Step("training", (*data.setup, run, *self._prune(data)))

    def _prune(self, data: TrainingData) -> tuple[str, ...]:
        """Return the command that removes the checkpoint of step 1, which MaxText always writes and nobody asked for.

        It holds the optimizer's state too: three times the model, in float32.
        """
        trainer = self.recipe.trainer
        if self.hardware != "cpu" or 1 in (trainer.steps, trainer.checkpoint_period):
            return ()
        return (command("rm", "-rf", f"{self.training_dir(data)}/checkpoints/1"),)

    def training_dir(self, data: TrainingData) -> str:
        """Return the folder of the run's checkpoints: its name changes with whatever changes the training.

        MaxText takes up any checkpoint that it finds under a run's name; one of another learning rate must not count.
        """
        return f"{self.layout.run}/{self._run_name(data)}"

    def trained_checkpoint(self, data: TrainingData) -> str:
        """Return the last checkpoint that the training writes."""
        return f"{self.training_dir(data)}/checkpoints/{self.recipe.trainer.steps}"

    def export(self, data: TrainingData) -> list[Step]:
        """Return the steps that write the trained model in the source's own format."""
        arguments = [
            *self._common_arguments(),
            f"load_parameters_path={self.trained_checkpoint(data)}/model_params",
            'base_output_directory="$PWD/exported"',
            # Exported in what the source's weights are stored as; finish_export.py compares them.
            "weight_dtype=bfloat16",
            "--override_model_architecture",
            f"--hf_model_path={self.model_dir}",
        ]
        finish = command(
            self.python, self.layout.script("finish_export.py"), "--exported", '"$PWD/exported"',
            "--source", self.model_dir, "--out", f"{self.layout.run}/model",
        )  # fmt: skip
        return [
            Step(
                "to_huggingface", (self._module("maxtext.checkpoint_conversion.to_huggingface", arguments),)
            ),
            Step("finish_export", (finish,)),
        ]

    def _module(self, module: str, arguments: list[str]) -> str:
        # A model that MaxText does not know by name is described by the source's own config.json.
        described = ["--hf-config", self.model_dir] if self.recipe.model.overrides else []
        launcher = self.layout.script("maxtext_launcher.py")
        return command(self.python, launcher, *described, module, *arguments)

    def _common_arguments(self) -> list[str]:
        """Return what the three commands must agree on."""
        recipe = self.recipe
        arguments = [f"model_name={recipe.model.maxtext_name}", f"tokenizer_path={self.model_dir}"]
        if recipe.model.overrides:
            arguments += ["override_model_config=true", *_options(recipe.model.overrides)]
        # One layout of the layers for conversion, training and export; no dump of 1,000 options in the log.
        arguments += ["scan_layers=True", "log_config=false"]
        # Text only. MaxText refuses an option that the model's own table sets, unless it is told to override.
        own_table = load_options(recipe.trainer.version).models[recipe.model.maxtext_name]
        if recipe.model.overrides or "use_multimodal" not in own_table:
            arguments.append("use_multimodal=False")
        if self.hardware == "cpu":
            arguments += ["hardware=cpu", "skip_jax_distributed_system=true"]
        return arguments

    def _run_name(self, data: TrainingData) -> str:
        return "training-" + content_digest(self._arguments_without_place(data), data.identity)[:8]

    def _training_arguments(self, data: TrainingData) -> list[str]:
        place = [f"run_name={self._run_name(data)}", f"base_output_directory={self.layout.run}"]
        return [*self._arguments_without_place(data), *place]

    def _arguments_without_place(self, data: TrainingData) -> list[str]:
        trainer = self.recipe.trainer
        arguments = [
            *self._common_arguments(),
            f"load_parameters_path={self.conversion.output}/0/items",
            f"steps={trainer.steps}",
            f"per_device_batch_size={trainer.per_device_batch_size}",
            f"max_target_length={trainer.max_target_length}",
            f"learning_rate={trainer.learning_rate}",
            f"checkpoint_period={trainer.checkpoint_period}",
            f"data_shuffle_seed={trainer.seed}",
            f'metrics_file="$PWD/{METRICS_FILE}"',
            f"jax_cache_dir={self.layout.cache}/compilations",
            # MaxText writes the Hub token into the TensorBoard files.
            "enable_tensorboard=false",
        ]
        options = dict(CPU_OPTIONS) if self.hardware == "cpu" else {}
        return _last_of_each([*arguments, *_options(options), *data.arguments, *_options(trainer.options)])


def _last_of_each(arguments: list[str]) -> list[str]:
    """Return arguments without those that a later one of the same name replaces; MaxText takes each name once."""
    return list({argument.partition("=")[0]: argument for argument in arguments}.values())


def _options(options: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_show(value)}" for key, value in options.items()]


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(f"'{item}'" if isinstance(item, str) else str(item) for item in value) + "]"
    return "" if value is None else str(value)
