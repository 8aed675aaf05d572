"""Aggregators in processes of their own, to be killed and frozen. Forked from a clean server that has torch loaded."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import torch

from anabasis.training.aggregator import Aggregator
from anabasis.training.checkpointing import roll_back, write_checkpoint
from anabasis.training.crashpoints import VARIABLE
from tests.aggregation.world import World, both, spec_for
from tests.support.wait import wait_until_sync

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.faults.aggregator_process"])

ROUNDS_PER_LEG = 2
KEEP = 2


def campaign(folder: Path, *, until: int, slow: bool = False) -> None:
    """A whole life, as the workflow orders it: prepare, legs with a checkpoint after each."""
    world = World(folder, training={"outer_momentum": 0.9, "dense_warmup_rounds": 0}, target={"rounds": until})
    pause = time.sleep if slow else (lambda _: None)
    aggregator = world.aggregator(sleep=pause, identity=f"process {os.getpid()}")
    aggregator.on_tick = both(world.nodes(0, 1), (lambda _: time.sleep(0.003)) if slow else (lambda _: None))
    legs(aggregator, world, until=until)


def legs(aggregator: Aggregator, world: World, *, until: int) -> None:
    while (version := world.newest.version) < until:
        end = min((version // ROUNDS_PER_LEG + 1) * ROUNDS_PER_LEG, until)
        aggregator.advance(until_version=end)
        write_checkpoint(aggregator, version=world.newest.version, keep=KEEP)
    write_checkpoint(aggregator, version=until, keep=KEEP)


def rollback(folder: Path) -> None:
    """Roll back the newest version, whatever an earlier try has done already."""
    world = World(folder)
    roll_back(world.aggregator(), from_version=4, not_after=4)


def started(target: str, folder: Path, *, crash_at: str = "", **options: object) -> BaseProcess:
    """Run a function of this module in a process of its own."""
    process = _context.Process(target=_run, args=(target, folder, crash_at, options), daemon=True)
    process.start()
    return process


def finished(process: BaseProcess, *, seconds: float = 60) -> int:
    """Its exit code: 0, or minus the signal that ended it."""
    process.join(seconds)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def freeze(pid: int, folder: Path) -> None:
    """SIGSTOP a process that uses a store in a folder, at a moment when it holds none of the store's locks.

    A folder as a store has locks that last for microseconds; whoever is frozen in one blocks the others until it is
    woken or killed (they wait, and say so). An aggregator alone has none, and that is what is frozen here.
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_until_sync(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, seconds=10, every=0.001)
        if not any(_is_locked(path) for path in [folder, *folder.rglob("*")] if path.is_dir()):
            return
        os.kill(pid, signal.SIGCONT)


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _run(target: str, folder: Path, crash_at: str, options: dict[str, object]) -> None:
    torch.set_num_threads(1)
    if crash_at:
        os.environ[VARIABLE] = crash_at
    globals()[target](folder, **options)


__all__ = ["campaign", "finished", "freeze", "legs", "rollback", "spec_for", "started"]
