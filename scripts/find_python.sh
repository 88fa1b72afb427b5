#!/usr/bin/env bash
# Print the path of a usable Python 3.12 interpreter; exit 1 with what was tried and what to do when there is none.
#
# A name on PATH proves nothing: a pyenv shim may stand in front of a version that is not selected, so every
# candidate is run. The interpreter's own path is printed, not the shim's. PYTHON=/path/to/python3.12 wins.
set -euo pipefail

wanted="3.12"
tried=""
lacks_venv=""
found=""

# Runs candidate $1; sets found to its real path when it is a Python of the wanted version that can make a venv.
probe() {
  local said
  if ! said="$("$1" -c '
import importlib.util, os, sys
venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
path = getattr(sys, "_base_executable", sys.executable)
print("%d.%d" % sys.version_info[:2], "venv" if venv else "bare", os.path.realpath(path))
' 2>/dev/null </dev/null)"; then
    tried+="  tried $1: does not run"$'\n'
    return
  fi
  case "$said" in
    "$wanted venv "*) found="${said#"$wanted venv "}" ;;
    "$wanted bare "*) lacks_venv="yes"; tried+="  tried $1: has no venv module"$'\n' ;;
    *) tried+="  tried $1: is Python ${said%% *}"$'\n' ;;
  esac
}

# Prints every candidate, best first, one per line.
candidates() {
  if [ -n "${PYTHON:-}" ]; then
    echo "$PYTHON"
    return
  fi
  type -ap "python$wanted" python3 python || true
  if type -p pyenv >/dev/null; then
    pyenv versions --bare 2>/dev/null | tr -d ' *' | grep -E "^3\.12\.[0-9]+$" | sort -t. -k3,3nr |
      while read -r version; do echo "$(pyenv prefix "$version")/bin/python"; done || true
  fi
  if type -p uv >/dev/null; then
    uv python find --no-python-downloads "$wanted" 2>/dev/null || true
  fi
}

while read -r candidate; do
  probe "$candidate"
  if [ -n "$found" ]; then
    echo "$found"
    exit 0
  fi
done < <(candidates)

next="install Python $wanted (with pyenv: pyenv install $wanted), or name one: make PYTHON=/path/to/python$wanted ..."
if [ -n "$lacks_venv" ]; then
  next="install its venv module (Debian, Ubuntu: apt-get install python$wanted-venv), then repeat the command"
fi
printf 'Python %s is needed and none was found.\n%sNext: %s\n' "$wanted" "$tried" "$next" >&2
exit 1
