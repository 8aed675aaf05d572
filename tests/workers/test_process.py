"""How a worker process ends: asked politely, asked twice, stuck, or by its own failure."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support.processes import Process, Processes, process_exists
from tests.support.wait import wait_until_sync
from workers import process, tether

PRELUDE = """
import asyncio, sys
from anabasis.errors import StackError
from workers.process import run_worker

async def polite(stop):
    print("ready", flush=True)
    await stop.wait()
    print("left", flush=True)

async def stubborn(stop):
    print("ready", flush=True)
    await asyncio.Event().wait()

async def refused(stop):
    raise StackError("port 1 is taken")

async def broken(stop):
    raise ZeroDivisionError

"""


def _start(processes: Processes, serve: str, *, stop_seconds: float = 30) -> Process:
    program = f"{PRELUDE}run_worker({serve}, stop_seconds={stop_seconds})"
    return processes.start([sys.executable, "-c", program], name=serve)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_the_worker_finish(processes: Processes, number: int) -> None:
    worker = _start(processes, "polite")
    worker.wait_for_text("ready")
    worker.signal(number)
    assert worker.wait() == process.EXIT_OK
    assert "left" in worker.text()


def test_a_second_signal_ends_it_at_once(processes: Processes) -> None:
    worker = _start(processes, "stubborn")
    worker.wait_for_text("ready")
    worker.signal(signal.SIGTERM)
    worker.wait_for_text("stopping")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == process.EXIT_SIGNALLED_TWICE


def test_the_watchdog_ends_one_that_does_not_stop(processes: Processes) -> None:
    worker = _start(processes, "stubborn", stop_seconds=0.2)
    worker.wait_for_text("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == process.EXIT_STUCK
    assert "worker_stuck" in worker.text()


def test_our_own_errors_are_one_line_and_others_carry_their_traceback(processes: Processes) -> None:
    refused, broken = _start(processes, "refused"), _start(processes, "broken")
    assert (refused.wait(), broken.wait()) == (process.EXIT_FAILED, process.EXIT_FAILED)
    assert "port 1 is taken" in refused.text()
    assert "Traceback" not in refused.text()
    assert "ZeroDivisionError" in broken.text()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_tethered_program_dies_with_its_parent_however_that_died(processes: Processes) -> None:
    program = (
        "import subprocess, time\n"
        "from workers.tether import tethered\n"
        "child = subprocess.Popen(tethered(['sleep', '600']), start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = processes.start([sys.executable, "-c", program], name="parent")
    child = int(parent.wait_for_text("child ").split()[1])
    assert process_exists(child)
    parent.kill()
    wait_until_sync(lambda: not process_exists(child), seconds=20)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_tethered_program_whose_parent_is_gone_already_does_not_start(processes: Processes) -> None:
    orphan = processes.start([sys.executable, "-I", "-S", tether.__file__, "1", "echo", "started"], name="orphan")
    assert orphan.wait() == tether.EXIT_PARENT_GONE
    assert "started" not in orphan.text()
