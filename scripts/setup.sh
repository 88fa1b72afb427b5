#!/usr/bin/env bash
# Make .venv from the locks given as arguments: setup.sh requirements.txt [requirements-dev.txt]
#
# Everything comes from PyPI with its hash checked and is compiled once; nothing is installed outside .venv.
# uv is itself one of the locked packages: pip brings it into .venv, and uv installs the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV

python=".venv/bin/python"
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
  base="$(scripts/find_python.sh)"
  echo "Making .venv with $base"
  rm -rf .venv
  "$base" -m venv .venv
fi

wanted_uv="$(sed -n 's/^uv==\([^ ;]*\).*/\1/p' requirements.txt)"
if [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$wanted_uv" ]; then
  awk '/^[^ #]/ {keep = /^uv==/} keep' requirements.txt >.venv/uv-lock.txt
  "$python" -m ensurepip --default-pip >/dev/null
  "$python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes --only-binary :all: \
    -r .venv/uv-lock.txt
fi

arguments=()
for lock in "$@"; do arguments+=(-r "$lock"); done
echo "Installing $* into .venv"
.venv/bin/uv pip install --python "$python" --quiet --require-hashes --compile-bytecode "${arguments[@]}"
