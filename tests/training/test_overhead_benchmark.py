"""The overhead benchmark runs and prints its table. What it finds is for quiet machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import Processes


@pytest.mark.slow
def test_the_overhead_benchmark_runs(tmp_path: Path, processes: Processes) -> None:
    figures = tmp_path / "figures.json"
    process = processes.python(
        "-m", "benchmarks.overhead", "--inner-steps", "4", "--seconds", "1", "--batch-size", "2",
        "--recipe-options", '{"layers": 1, "width": 16, "heads": 2}', "--json", str(figures), name="benchmark",
    )  # fmt: skip
    process.wait(seconds=120)
    (row,) = json.loads(figures.read_text())
    assert f"{row['ratio']:6.1%}" in process.text()
    assert 0 < row["ratio"] < 2
    assert row["train_share"] + row["sync_share"] + row["wait_share"] == pytest.approx(1)
