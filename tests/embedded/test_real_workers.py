"""The stack with its real workers: torch and all."""

from __future__ import annotations

import signal

import pytest

from anabasis.cli import exits
from tests.support.processes import Processes
from workers.connect import connect
from workers.health import AGGREGATOR_PARTS, CONTROL_PARTS, are_polled

UP_SECONDS = 180.0
"""It takes about four seconds; importing torch from a cold disk on a busy machine takes longer."""


@pytest.mark.slow
async def test_up_with_the_real_workers(processes: Processes) -> None:
    stack = processes.python("-m", "anabasis.cli.main", "up", "--port", "0", "--json", name="up")
    stack.wait_for_text('"ready":true', seconds=UP_SECONDS)
    client = await connect()
    assert await are_polled(client, CONTROL_PARTS)
    assert await are_polled(client, AGGREGATOR_PARTS)
    stack.signal(signal.SIGTERM)
    assert stack.wait(seconds=UP_SECONDS) == exits.OK
