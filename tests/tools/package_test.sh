#!/usr/bin/env bash
# What tools/package makes of the built programs runs where it is unpacked, with nothing but torch beside it.
set -euo pipefail
root=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/package.XXXXXX")
trap 'rm -rf "$folder"' EXIT

"$root/tools/package" --no-build -o "$folder/latentd.tar.gz"
tar -C "$folder" -xzf "$folder/latentd.tar.gz"
cd "$folder"/latentd-*/
torch=$(realpath "$root/.deps/site")/torch

expect() {
  local what=$1
  shift
  output=$(env -i PATH="$PATH" HOME="$folder" timeout 120 "$@" 2>&1) || { printf '%s\n' "$output" "failed: $*"; exit 1; }
  [[ $output == *"$what"* ]] || { printf '%s\n' "$output" "\"$what\" is not in the output of: $*"; exit 1; }
}
expect "wan.denoiser" ./latentd --torch "$torch" --config configs/demo.yaml --check
# The exit code of a list is its length, in one of Catch2's versions.
expect "channel: the contract holds" sh -c './latentd-tests --torch "$1" --list-tests || true' sh "$torch"
expect "All tests passed" ./latentd-tests --torch "$torch" "[config]~[.]"
expect "Usage" ./latentctl --help
expect "Usage" ./handoff_bare --torch "$torch" --help
expect "random kills over CUDA IPC" sh -c './cuda_kill_test --torch "$1" --list-tests || true' sh "$torch"
# With a python3 that has torch, and from anywhere.
expect "passed: cpu to cpu: shm" sh -c 'cd / && "$1/.deps/venv/bin/python" "$2/tools/bench/multi_gpu" --devices cpu,cpu --tiny \
  --only peers --only collectives --out "$2/report"' sh "$root" "$PWD"
[[ -s report/report.txt && -s report/report.json ]] || { echo "multi_gpu wrote no report"; exit 1; }
for needed in tests/bench/{random_checkpoint.py,wan21_t2v_1_3b.json,handoff_cuda_python.py,handoff_timing.py} tools/bench/handoff_gpu; do
  [[ -s $needed ]] || { echo "$needed is not in the tarball"; exit 1; }
done
if compgen -G "lib/libav*" >/dev/null; then
  echo "the tarball carries libav"
  exit 1
fi
