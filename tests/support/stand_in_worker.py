"""A light worker for tests of the stack: polls the queues named on the command line through environment variables.

`STAND_IN_QUEUE` is the task queue; with `STAND_IN_CRASH_FILE`, it exits with code 9 as long as that file exists.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workers.connect import connect
from workers.process import exit_on_fatal_error


@activity.defn
async def nothing() -> None:
    """Does nothing."""


@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None:
        """Does nothing."""


async def serve(stop: asyncio.Event, queue: str) -> None:
    crash = os.environ.get("STAND_IN_CRASH_FILE")
    if crash and Path(crash).exists():
        print("crashing as told", file=sys.stderr)
        sys.exit(9)
    worker = Worker(
        await connect(patience_seconds=30),
        task_queue=queue,
        activities=[nothing],
        workflows=[Nothing],
        workflow_runner=UnsandboxedWorkflowRunner(),
        on_fatal_error=exit_on_fatal_error,
    )
    async with worker:
        await stop.wait()
