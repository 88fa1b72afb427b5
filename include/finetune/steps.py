"""A stage's work as steps, and the one shell script that a machine runs for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_LINE_LENGTH = 100

# What a job may not inherit from the shell or the Airflow that started the local machine's work. MaxText writes a
# token that merely stands in the environment into its TensorBoard files.
_PRELUDE = """\
set -euo pipefail
unset HF_TOKEN HUGGING_FACE_HUB_TOKEN PYTHONPATH PYTHONDONTWRITEBYTECODE
export HF_HOME="$PWD/huggingface"

# Builds an artifact once for everybody: whoever comes second waits, then uses it.
build() {
  local name=$1 output=$2
  mkdir -p "$(dirname "$output")"
  exec 9> "$(dirname "$output")/.$(basename "$output").lock"
  flock 9
  if [ -e "$output" ]; then
    echo "[$name] reused: $output"
  else
    echo "[$name] making $output"
    NEW=$output.new
    rm -rf "$NEW"
    "$name"
    mv -T "$NEW" "$output"
  fi
  exec 9>&-
}
"""


@dataclass(frozen=True)
class Step:
    """One named part of a stage.

    Args:
        name: A shell identifier.
        commands: Lines of bash. They write what they make to ``"$NEW"`` where ``output`` is given.
        output: The shared artifact that the step makes; the step is passed over where it stands already. None for a
            step that is always run.
    """

    name: str
    commands: tuple[str, ...]
    output: str | None = None

    def render(self) -> str:
        """Return the step as a shell function and its call."""
        body = "\n".join(f"  {line}" for command in self.commands for line in command.splitlines())
        call = f"build {self.name} {shlex.quote(self.output)}" if self.output else self.name
        banner = "" if self.output else f"  echo '[{self.name}] running'\n"
        return f"{self.name}() {{\n{banner}{body}\n}}\n{call}\n"


def render_script(steps: Sequence[Step], env: Mapping[str, str]) -> str:
    """Return the bash script that runs the steps in order and ends at the first failure."""
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in sorted(env.items()))
    return "\n".join([_PRELUDE + exports, *(step.render() for step in steps)])


def command(*words: str) -> str:
    """Return one command, quoted for the shell; a long one has an option in each line.

    A word with ``"$`` in it is left as it is: it names a shell variable and is quoted by its author.
    """
    quoted = [word if '"$' in word else shlex.quote(word) for word in words]
    line = " ".join(quoted)
    if len(line) <= MAX_LINE_LENGTH:
        return line
    starts_line = [index > 0 and ("=" in word or word.startswith("--")) for index, word in enumerate(words)]
    return "".join(
        (" \\\n  " if starts else " " if index else "") + word
        for index, (starts, word) in enumerate(zip(starts_line, quoted, strict=True))
    )
