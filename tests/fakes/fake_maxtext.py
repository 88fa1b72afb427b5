"""Stand in for a trainer's Python: the same command lines, files, log lines and exit codes, in seconds.

    fake_maxtext.py CONTROL_DIR PYTHON_ARGUMENT...

A planted environment's ``bin/python`` runs this file with whatever a stage gives to the real interpreter. Standard
library only. What goes wrong is read, again at each step, from ``CONTROL_DIR/faults.json``; every command leaves
a line in ``CONTROL_DIR/journal.jsonl``. See ``trainer.py`` for both.

What is imitated was seen in MaxText 0.2.5: rows of ``metrics_file`` (common/metric_logger.py), checkpoints at the first
step, at each ``checkpoint_period`` and at the last, resumption from the newest complete one, a training whose
data run out ending with exit code 0.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.02
TOKENS_PER_STEP = 47
SOURCE_LOSS = 4.0


class Control:
    """What a test has asked for, and the record of what was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fault(self, name: str) -> Any:
        """Return what is asked for under this name now; None for nothing."""
        try:
            return json.loads((self.folder / "faults.json").read_text()).get(name)
        except FileNotFoundError:
            return None

    def begin(self, command: str, **facts: Any) -> None:
        """Leave a line, wait while the command is held, and fail where that is asked for."""
        line = json.dumps({"command": command, "pid": os.getpid(), **facts}) + "\n"
        with (self.folder / "journal.jsonl").open("a") as journal:
            journal.write(line)
        self.wait_while(lambda: command in (self.fault("hold") or []))
        message = (self.fault("fail") or {}).get(command)
        if message is not None:
            sys.exit(message)

    def wait_while(self, held: Callable[[], bool]) -> None:
        """Wait until a test lets go."""
        while held():
            time.sleep(POLL_SECONDS)


def read_options(arguments: list[str]) -> dict[str, str]:
    """Return MaxText's ``key=value`` arguments, and the value after each ``--option``."""
    options = dict(word.split("=", 1) for word in arguments if "=" in word)
    for option, value in itertools.pairwise(arguments):
        if option.startswith("--") and "=" not in option:
            options[option] = value
    return options


def require(path: str) -> Path:
    """Return a path that must exist."""
    if not Path(path).exists():
        sys.exit(f"ValueError: nothing is at {path}")
    return Path(path)


# --- models and data ---


def write_model(folder: Path, weights: str) -> None:
    """Write what looks like a Hugging Face directory."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)


def build_model(control: Control, options: dict[str, str]) -> None:
    """Make the source model."""
    control.begin("build_model")
    write_model(Path(options["--out"]), "random")


def build_dataset(control: Control, options: dict[str, str]) -> None:
    """Make the bundled dialogues."""
    control.begin("build_dataset")
    folder = Path(options["--out"])
    folder.mkdir(parents=True)
    for name, count in (("train", 40), ("heldout", 8)):
        rows = [
            [{"role": "user", "content": f"{name} {i}?"}, {"role": "assistant", "content": "Yes."}]
            for i in range(count)
        ]
        lines = [json.dumps({"messages": messages}) + "\n" for messages in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))


# --- conversion and export ---


def convert(control: Control, options: dict[str, str]) -> None:
    """Turn the source model into a checkpoint."""
    control.begin("convert")
    source = require(options["--hf_model_path"])
    items = Path(options["base_output_directory"]) / "0" / "items"
    items.mkdir(parents=True)
    shutil.copy(source / "model.safetensors", items / "weights")


def to_huggingface(control: Control, options: dict[str, str]) -> None:
    """Turn a trained checkpoint into Hugging Face weights."""
    control.begin("export")
    weights = (require(options["load_parameters_path"]) / "weights").read_text()
    folder = Path(options["base_output_directory"])
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(weights)


def finish_export(control: Control, options: dict[str, str]) -> None:
    """Put the model together, with its report."""
    control.begin("finish_export")
    out = Path(options["--out"])
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(require(options["--source"]), out)
    shutil.copy(require(options["--exported"]) / "model.safetensors", out)
    (out / "export_report.json").write_text(json.dumps({"tensors": 1, "changed_tensors": 1}))


def evaluate(control: Control, options: dict[str, str]) -> None:
    """Measure a model: an exported one has lost what its training won."""
    control.begin("evaluate", model=options["--model"])
    model = require(options["--model"])
    weights = (model / "model.safetensors").read_text()
    trained_loss = control.fault("heldout_loss")
    loss = SOURCE_LOSS if not weights.startswith("trained") else trained_loss or SOURCE_LOSS / 2
    prompts = json.loads(require(options["--prompts"]).read_text())
    result = {
        "loss": loss,
        "perplexity": math.exp(loss),
        "tokens": 100,
        "examples": len(require(options["--heldout"]).read_text().splitlines()),
        "samples": [{"prompt": prompt, "answer": weights, "stopped": True} for prompt in prompts],
    }
    Path(options["--out"]).write_text(json.dumps(result))


# --- training ---


def loss_at(step: int, learning_rate: float) -> float:
    """Return the loss of a step, the same in every run."""
    return 2.0 + 5.0 * math.exp(-step * learning_rate)


class Training:
    """One start of a training: from the newest complete checkpoint to the last step, or to a fault."""

    def __init__(self, control: Control, options: dict[str, str]) -> None:
        self.control = control
        self.steps = int(options["steps"])
        self.period = int(options["checkpoint_period"])
        self.learning_rate = float(options["learning_rate"])
        self.run_name = options["run_name"]
        self.metrics = Path(options["metrics_file"])
        self.checkpoints = Path(options["base_output_directory"]) / self.run_name / "checkpoints"
        require(options["load_parameters_path"])
        require(options["hf_train_files"])

    def run(self) -> None:
        """Train."""
        resumed = self.newest_checkpoint()
        self.control.begin("train", resumed=resumed, steps=self.steps, learning_rate=self.learning_rate)
        for step in range(resumed + 1, self.steps + 1):
            self.control.wait_while(lambda at=step: self.control.fault("hold_at_step") == at)  # type: ignore[misc]
            time.sleep(self.control.fault("step_seconds") or 0.0)
            if self.control.fault("end_early_at_step") == step:
                print("Exception in load_next_train_batch: StopIteration()", flush=True)
                self.save(step - 1)
                return
            if self.control.fault("exit_at_step") == step:
                sys.exit(f"RuntimeError: asked to fail at step {step}")
            self.take(step)
            if step in (1, self.steps) or step % self.period == 0:
                self.save(step)

    def take(self, step: int) -> None:
        """Make one step: its row, its line, and the end where the loss is not a number."""
        tokens = 0 if self.control.fault("no_tokens") else TOKENS_PER_STEP
        loss = loss_at(step, self.learning_rate) if tokens else 0.0
        if self.control.fault("nan_at_step") == step:
            loss = math.nan
        row = {
            "learning/loss": loss,
            "learning/total_weights": float(tokens),
            "learning/perplexity": math.exp(loss),
            "learning/grad_norm": 1.0,
            "perf/step_time_seconds": 0.5,
            "learning/current_learning_rate": self.learning_rate,
            "perf/per_device_tflops": 0.4,
            "perf/per_device_tflops_per_sec": 0.8,
            "perf/per_device_tokens": 256.0,
            "perf/per_device_tokens_per_sec": 512.0,
            "step": float(step),
            "run_name": self.run_name,
        }
        print(
            f"completed step: {step}, seconds: 0.500, total_weights: {tokens}, loss: {loss:.3f}", flush=True
        )
        with self.metrics.open("a") as metrics:
            metrics.write(json.dumps(row) + "\n")
        if math.isnan(loss):
            sys.exit("Aborting training due to NaN loss.")

    def save(self, step: int) -> None:
        """Write a checkpoint; it counts once it is complete."""
        if (self.checkpoints / str(step)).exists():
            return
        unfinished = self.checkpoints / f"{step}.orbax-checkpoint-tmp"
        shutil.rmtree(unfinished, ignore_errors=True)
        (unfinished / "model_params").mkdir(parents=True)
        (unfinished / "model_params" / "weights").write_text(f"trained for {step} steps")
        (unfinished / "_CHECKPOINT_METADATA").write_text("{}")
        (unfinished / "commit_success.txt").write_text("")
        unfinished.rename(self.checkpoints / str(step))

    def newest_checkpoint(self) -> int:
        """Return the step of the newest complete checkpoint; 0 without any."""
        complete = self.checkpoints.glob("*/commit_success.txt")
        return max((int(path.parent.name) for path in complete if path.parent.name.isdigit()), default=0)


def train(control: Control, options: dict[str, str]) -> None:
    """Fine-tune."""
    Training(control, options).run()


def print_version(control: Control, options: dict[str, str]) -> None:
    """Answer what the installation asks of a new environment."""
    control.begin("version")
    print("MaxText 0.2.5, a stand-in")


COMMANDS: dict[str, Callable[[Control, dict[str, str]], None]] = {
    "-c": print_version,
    "build_tiny_model.py": build_model,
    "build_chatterbot_dataset.py": build_dataset,
    "maxtext.checkpoint_conversion.to_maxtext": convert,
    "maxtext.trainers.post_train.sft.train_sft": train,
    "maxtext.checkpoint_conversion.to_huggingface": to_huggingface,
    "finish_export.py": finish_export,
    "evaluate_model.py": evaluate,
}


def main(control_dir: str, arguments: list[str]) -> None:
    """Do what the first known word among the arguments asks for."""
    for index, word in enumerate(arguments):
        if Path(word).name in COMMANDS:
            COMMANDS[Path(word).name](Control(Path(control_dir)), read_options(arguments[index + 1 :]))
            return
    sys.exit(f"the stand-in for MaxText knows no such command: {arguments}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
