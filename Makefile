# Works from a fresh clone, with no environment variables, in a folder whose path may contain spaces.
#
#   make setup   a virtual environment in .venv with everything (the second time: nothing to do)
#   make run     the demo: a small campaign that survives what is done to it, on this machine
#   make test    lint, then all tests, two at a time
#   make bench   the measurements behind the README's numbers
#   make clean   remove what the above made (not .anabasis, which holds your campaigns)
#
# Variables: PYTHON (which Python to use), TESTS (what to test), WORKERS (how many tests at a time), PYTEST (more options).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?=
TESTS ?= tests
WORKERS ?= 2
PYTEST ?=
TORCH ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup run test quick lint format bench constraints system-packages clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml requirements/constraints.txt scripts/setup.sh
	@PYTHON='$(PYTHON)' bash scripts/setup.sh
	@touch $(STAMP)

run: setup
	@$(PY) -m anabasis.cli.main demo

# worksteal: tests differ a hundredfold in length, so that an idle process takes over from a busy one.
test: setup system-packages lint
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST) $(TESTS)

quick: setup
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not faults and not browser' $(PYTEST) $(TESTS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup
	@for file in benchmarks/[a-z]*.py; do \
	  [ "$$file" != benchmarks/table.py ] || continue; \
	  echo "== $$file"; $(PY) -m "benchmarks.$$(basename "$$file" .py)"; \
	done

# Pin what a fresh installation gets today.
constraints:
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' bash scripts/pin.sh

system-packages:
	@bash scripts/system-packages.sh

clean:
	rm -rf $(VENV) build dist demo-output *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
