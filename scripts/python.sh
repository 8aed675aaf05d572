# Sourced: `choose_python` prints a Python that can make our virtual environment, or says why there is none.

OLDEST_PYTHON=3.11

# Arguments: the Python that the user asked for, if any.
choose_python() {
  local candidate
  for candidate in ${1:+"$1"} $([ -n "${1:-}" ] || echo python3 python3.14 python3.13 python3.12 python3.11); do
    command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    if ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      echo "setup: $candidate cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2
      return 1
    fi
    command -v "$candidate"
    return 0
  done
  if [ -n "${1:-}" ]; then
    echo "setup: PYTHON=$1 is not Python $OLDEST_PYTHON or newer: $("$1" --version 2>&1 || true)" >&2
  else
    echo "setup: no Python $OLDEST_PYTHON or newer found ($(python3 --version 2>&1 || true)): install one, or run make PYTHON=/path/to/python" >&2
  fi
  return 1
}
