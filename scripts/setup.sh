#!/usr/bin/env bash
# Makes .venv and installs the project in it, editable, with every pinned dependency. `make setup` runs it when needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python.sh
source scripts/python.sh

# A virtual environment knows its own absolute path: one that was moved or copied is made anew.
usable() {
  [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)' 2>/dev/null)" = "$PWD/.venv" ]
}

if ! usable; then
  python="$(choose_python "${PYTHON:-}")"
  echo "setup: making .venv with $("$python" --version) ($python)"
  rm -rf .venv
  "$python" -m venv .venv
fi
echo "setup: installing (a few minutes the first time: torch is large)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev]'
