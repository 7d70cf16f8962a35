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
if compgen -G "lib/libav*" >/dev/null; then
  echo "the tarball carries libav"
  exit 1
fi
