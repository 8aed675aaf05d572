"""Ending what belongs to a stack: leftovers of an earlier life, node agents of this machine, a running supervisor."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil
import structlog

from anabasis.errors import StackError
from workers.state_dir import ProcessRecord, StateDir

NODES_STOP_SECONDS = 20.0
"""For all node agents of this machine to let their trainers finish a step."""

LEFTOVER_STOP_SECONDS = 10.0
"""From SIGTERM to SIGKILL for a process whose supervisor is gone: nobody waits for its result any more."""

DOWN_SECONDS = 120.0
"""For a supervisor to stop everything in order (its own deadlines add up to less); after that it is killed."""

_POLL_SECONDS = 0.05

_log = structlog.get_logger(__name__)


def end_leftovers(state: StateDir) -> list[ProcessRecord]:
    """End recorded processes of a stack whose supervisor is gone (call it holding the lock); returns them.

    Processes are recognised by pid and start time, so that a reused pid is never touched. Node agents are not
    leftovers: they wait for Temporal to come back.
    """
    record = state.read()
    if record is None:
        return []
    left = [one for one in [record.supervisor, *record.children] if one.find() is not None]
    if left:
        _log.info("ending_leftovers", processes=[f"{one.name} {one.pid}" for one in left])
        end_processes(left, seconds=LEFTOVER_STOP_SECONDS)
    state.forget()
    return left


def end_processes(records: Sequence[ProcessRecord], *, seconds: float) -> None:
    """SIGTERM all of them, and SIGKILL those that still run after `seconds`."""
    for record in records:
        _signal(record, signal.SIGTERM)
    if not _until_gone(records, seconds=seconds):
        for record in records:
            _signal(record, signal.SIGKILL)
        _until_gone(records, seconds=seconds)


def _signal(record: ProcessRecord, number: signal.Signals) -> None:
    process = record.find()
    if process is not None:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _until_gone(records: Sequence[ProcessRecord], *, seconds: float) -> bool:
    # Not psutil.wait_procs: it would wait for zombies, which nobody may ever collect (a container without an init).
    deadline = time.monotonic() + seconds
    while any(record.find() is not None for record in records):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def stop_nodes(state: StateDir) -> int:
    """Stop the node agents and simulators that were started from this state directory; returns how many lived.

    Call it where no event loop runs.
    """
    from activities.providers import local, simulated  # not needed by every user of this module, and not light

    agents = local.stop_all(state.home, grace_seconds=NODES_STOP_SECONDS)
    return agents + simulated.stop_all(state.home)


def down(state: StateDir) -> bool:
    """Stop the stack of this state directory; returns whether there was one. Idempotent.

    Raises:
        StackError: it runs but does not say which process it is, or it cannot be ended (another user's).
    """
    if not state.is_locked():
        left = end_leftovers(state)
        stop_nodes(state)
        return bool(left)
    supervisor = _running_supervisor(state)
    try:
        process = supervisor.find()
        if process is not None:
            process.terminate()
        if not _unlocked_within(state, DOWN_SECONDS) and process is not None:
            _log.warning("supervisor_does_not_stop", pid=supervisor.pid, seconds=DOWN_SECONDS)
            process.kill()
            process.wait(LEFTOVER_STOP_SECONDS)
            end_leftovers(state)
            stop_nodes(state)
        _until_gone([supervisor], seconds=LEFTOVER_STOP_SECONDS)  # it has let go of everything, and is leaving
    except psutil.AccessDenied:
        raise StackError(f"process {supervisor.pid} belongs to another user: stop it as that user") from None
    except psutil.NoSuchProcess:
        pass  # it ended by itself meanwhile
    return True


def _running_supervisor(state: StateDir) -> ProcessRecord:
    deadline = time.monotonic() + LEFTOVER_STOP_SECONDS
    while time.monotonic() < deadline:
        record = state.read()
        if record is not None and record.supervisor.find() is not None:
            return record.supervisor
        time.sleep(_POLL_SECONDS)  # it has only just taken the lock
    raise StackError(f"a process holds {state.home / 'lock'} but wrote no record: end it (lsof {state.home / 'lock'})")


def _unlocked_within(state: StateDir, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while state.is_locked():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
