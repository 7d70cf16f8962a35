#!/usr/bin/env bash
# Starts the program of this name from bin/ with the host's libtorch.
#   --torch DIR   the folder of the torch package (…/site-packages/torch); default: the one that python3 imports
set -euo pipefail
here=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")" && pwd)
program=$(basename "${BASH_SOURCE[0]}")

torch=
arguments=()
while (($#)); do
  case "$1" in
    --torch) torch=${2:?--torch needs a folder}; shift ;;
    --torch=*) torch=${1#--torch=} ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# The client needs no torch.
if [[ $program != latentctl ]]; then
  if [[ -z $torch ]]; then
    torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
  fi
  if [[ ! -e $torch/lib/libtorch_cpu.so ]]; then
    echo "$program: no torch found${torch:+ in $torch}: pip install torch==2.11.0, or name its folder with --torch DIR" >&2
    exit 1
  fi
  found=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/version.py" 2>/dev/null || true)
  case "$found" in
    2.11.0*) ;;
    *) echo "$program: torch ${found:-of unknown version} in $torch; this build needs 2.11.0: pip install torch==2.11.0" >&2; exit 1 ;;
  esac
  site=$(dirname "$torch")
  # torch's own libraries find most of these themselves; which, is up to its build.
  printf -v nvidia ':%s' "$site"/nvidia/*/lib
  export LD_LIBRARY_PATH="$here/lib:$torch/lib$nvidia${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
if [[ $program == latentd-tests ]]; then
  # The tests find their goldens from here.
  cd "$here"
  if ((${#arguments[@]} == 0)) && [[ ! -e /dev/nvidiactl ]]; then
    echo "$program: this host has no GPU: without the cases tagged [cuda] or [nccl]" >&2
    arguments=('~[.]~[cuda]~[nccl]')  # what is left out alone would bring the hidden cases back
  fi
fi
exec "$here/bin/$program" "${arguments[@]}"
