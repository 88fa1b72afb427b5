#!/usr/bin/env bash
# Write requirements.txt and requirements-dev.txt from pyproject.toml: exact versions with hashes, for every platform.
#
# The second lock is constrained by the first, so that tests run on the very versions that users run.
# Set UPGRADE=1 to move to the newest versions; without it only what pyproject.toml asks for changes.
set -euo pipefail
cd "$(dirname "$0")/.."

uv="${UV:-.venv/bin/uv}"
options=(--quiet --python-version 3.12 --universal --generate-hashes --no-emit-index-url --no-header)
[ -z "${UPGRADE:-}" ] || options+=(--upgrade)
"$uv" pip compile "${options[@]}" pyproject.toml --output-file requirements.txt
"$uv" pip compile "${options[@]}" --group pyproject.toml:dev --constraint requirements.txt \
  --output-file requirements-dev.txt
