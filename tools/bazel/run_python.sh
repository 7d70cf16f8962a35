#!/usr/bin/env bash
# Runs a Python test in the environment that tools/setup made (.deps/venv), from the runfiles.
set -euo pipefail
root=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..
exec "$root/.deps/venv/bin/python" -B -u "$@"
