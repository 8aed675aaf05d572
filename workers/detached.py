"""A stack in the background: what `anabasis up --detach` starts, and how it hears whether that worked.

The child is `python -m workers.detached <options as JSON>`, in a session of its own, with its log in
`logs/supervisor.log`. It tells its parent through a pipe, in one JSON line: ready, or why not.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from anabasis.errors import AnabasisError, StackError, TemporalUnavailable
from workers.embedded import STOP_SECONDS, StackOptions, run_stack
from workers.log_files import last_message
from workers.process import run_worker
from workers.state_dir import StackRecord, StateDir
from workers.supervisor import TEMPORAL_START_SECONDS, WORKERS_START_SECONDS

PROGRAM = "workers.detached"
"""Module that the background process runs."""

READY_SECONDS = TEMPORAL_START_SECONDS + WORKERS_START_SECONDS + 30.0
"""The parts' own deadlines, and room for ending leftovers of an earlier life."""


def start_detached(options: StackOptions, state: StateDir) -> StackRecord:
    """Start a stack that outlives this process, and wait until it is ready.

    Raises:
        StackError, TemporalUnavailable: as `run_stack`.
    """
    state.create()
    reading, writing = os.pipe()
    command = [sys.executable, "-m", PROGRAM, json.dumps(_to_json(options)), str(writing)]
    log = state.logs / "supervisor.log"
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "ANABASIS_HOME": str(state.home)},
            pass_fds=[writing],
            start_new_session=True,
        )
    os.close(writing)
    try:
        answer = _read_line(reading, seconds=READY_SECONDS)
    finally:
        os.close(reading)
    if answer is None:
        child.terminate()
        raise StackError(f"the stack is not ready after {READY_SECONDS:g} s: see {log}")
    if not answer:
        raise StackError(f"the supervisor ended while starting ({last_message(log)}): see {log}")
    if "error" in answer:
        kind = TemporalUnavailable if answer["error"] == "TemporalUnavailable" else StackError
        raise kind(answer["text"])
    return StackRecord.model_validate(answer["record"])


def main(arguments: list[str]) -> None:
    """The child's side."""
    options, report = StackOptions(**json.loads(arguments[0])), int(arguments[1])

    async def serve(stop: asyncio.Event) -> None:
        try:
            await run_stack(
                options, StateDir(), stop, on_ready=lambda record: _tell(report, {"record": record.model_dump()})
            )
        except AnabasisError as error:
            _tell(report, {"error": error.kind, "text": str(error)})
            raise

    run_worker(serve, stop_seconds=STOP_SECONDS, json_logs=True)


def _to_json(options: StackOptions) -> dict[str, Any]:
    return {"port": options.port, "ui_port": options.ui_port, "external": options.external, "detached": True}


def _tell(report: int, what: dict[str, Any]) -> None:
    with suppress(OSError):  # told already, or the parent has gone: it started us and did not wait
        os.write(report, json.dumps(what).encode() + b"\n")
        os.close(report)


def _read_line(reading: int, *, seconds: float) -> dict[str, Any] | None:
    """The child's line; empty when it ended without one, None when time is up."""
    deadline = time.monotonic() + seconds
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 65_536)
        if not part:
            return {}
        text += part
    return json.loads(text)


if __name__ == "__main__":
    main(sys.argv[1:])
