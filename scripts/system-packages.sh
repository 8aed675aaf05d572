#!/usr/bin/env bash
# What some tests need from the system on Debian and Ubuntu: a browser for the report's pages, `ip` and `tc` for network
# faults. Installs only what is missing, and only when it may; otherwise it says what to install and goes on.
set -euo pipefail

missing=()
need() { # package, program
  command -v "$2" >/dev/null 2>&1 || [ -x "/usr/sbin/$2" ] || missing+=("$1")
}
need chromium chromium
need chromium-driver chromedriver
need iproute2 ip

if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
  echo "system-packages: not found: ${missing[*]} (names on Debian). Tests that need them are skipped." >&2
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "system-packages: run: sudo apt-get install ${missing[*]}. Until then, tests that need them are skipped." >&2
    exit 0
  fi
  as_root=(sudo -n)
fi

echo "system-packages: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
