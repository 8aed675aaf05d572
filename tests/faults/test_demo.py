"""`make run`: the demo breaks what it says, every fault is noticed and mended, and what it promises is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import Processes, process_exists
from tests.support.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

DEMO_SECONDS = 800.0
"""About 90 s alone on two cores; tests run beside it."""


def test_the_demo_ends_well(processes: Processes, tmp_path: Path) -> None:
    output = tmp_path / "output"
    demo = processes.python("-m", "anabasis.cli.main", "demo", "--output", str(output), name="demo")
    code = demo.wait(seconds=DEMO_SECONDS)
    text = demo.text()
    assert code == 0, text[-6_000:]
    for fault in ("agent killed", "trainer frozen", "control worker killed", "corrupted on disk"):
        assert fault in text, text[-6_000:]
    assert "Traceback" not in text
    for picture in ("losses.png", "stormy.png", "stormy.html", "calm.html"):
        assert (output / picture).stat().st_size > 1_000
    left = Stack(processes, output / "state").processes()
    assert not [pid for pid in left if process_exists(pid)], f"processes stay behind {os.getpid()}"
