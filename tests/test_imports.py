"""Who may import whom (the contracts in pyproject.toml), and which processes stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY

HEAVY = ("torch", "boto3", "matplotlib", "transformers")


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_the_import_contracts_hold() -> None:
    checked = _python("from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    "module",
    [
        "workers.control",  # the machine that decides needs neither torch nor a cloud's SDK
        "workers.agent",  # a node with a broken torch must still be able to say so
        "workers.embedded",
        "anabasis.cli.main",  # the command line answers at once
        "anabasis.client",
    ],
)
def test_light_processes_load_no_heavy_library(module: str) -> None:
    loaded = _python(f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])")
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == []


def test_help_needs_neither_temporal_nor_the_library_of_tables() -> None:
    loaded = _python(
        "import sys\n"
        "from anabasis.cli.main import run\n"
        "code = run(['--help'])\n"
        "print('code', code, 'temporal', 'temporalio' in sys.modules)\n"
    )
    assert loaded.stdout.splitlines()[-1] == "code 0 temporal False"
