"""The data plane's benchmark runs and prints its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import Processes


@pytest.mark.slow
def test_the_data_plane_benchmark_runs(tmp_path: Path, processes: Processes) -> None:
    figures = tmp_path / "figures.json"
    process = processes.python(
        "-m", "benchmarks.data_plane", "--sizes", "0.05", "--contributions", "2", "--disk", str(tmp_path),
        "--json", str(figures), name="benchmark",
    )  # fmt: skip
    assert process.wait(seconds=120) == 0, process.text()
    assert "| 50,000 | 2 | disk |" in process.text()
    assert json.loads(figures.read_text())["cases"][0]["round_rate"] > 0
