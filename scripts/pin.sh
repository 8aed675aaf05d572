#!/usr/bin/env bash
# Rewrites requirements/constraints.txt with the versions that an unconstrained installation gets now, except torch,
# which is moved on purpose only: make constraints TORCH=2.13.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python.sh
source scripts/python.sh

torch="${TORCH:-$(sed -n 's/^torch==//p' requirements/constraints.txt)}"
python="$(choose_python "${PYTHON:-}")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$torch" '.[dev]'

# torch comes in builds (2.13.0+cpu, +cu130): the version alone lets pip take the one that fits the machine. Each build
# asks for exactly the CUDA libraries that it needs, so they are not for us to pin.
freeze() {
  "$scratch/venv/bin/python" -m pip freeze --disable-pip-version-check --all --exclude anabasis --exclude pip |
    sed -E 's/\+(cpu|cu[0-9]+|rocm[0-9.]+)$//' |
    grep -vE '^(nvidia-|cuda-|triton)' |
    LC_ALL=C sort -f
}

{
  echo '# What `make setup` installs, to the version: every dependency of every extra. Rewritten by `make constraints`.'
  freeze
} >"$scratch/constraints.txt"
mv "$scratch/constraints.txt" requirements/constraints.txt
