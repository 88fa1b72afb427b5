#!/usr/bin/env bash
# Write .env from .env.example with a random value for each secret. An existing .env is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${1:-.env}"
if [ -e "$target" ]; then
  echo "$target exists and is kept."
  exit 0
fi
umask 077
while IFS= read -r line; do
  case "$line" in
    AIRFLOW_FERNET_KEY=) echo "$line$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')" ;;
    [A-Z]*=) echo "$line$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" ;;
    *) echo "$line" ;;
  esac
done <.env.example >"$target"
echo "Wrote $target; only you can read it."
