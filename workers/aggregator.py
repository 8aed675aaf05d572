"""The aggregator worker: `python -m workers.aggregator`. Serves the queue `aggregators`; needs torch.

Start as many as there are campaigns to spread; any of them can go on with any campaign, and two at the same one
do no harm.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import structlog
import torch
from temporalio.worker import Worker

from activities.aggregation import AggregatorActivities
from anabasis.campaign.messages import AGGREGATOR_QUEUE
from workers.connect import connect
from workers.process import exit_on_fatal_error, run_worker

MAX_ACTIVITIES = 32
"""At once. A leg spends nearly all its time waiting for contributions, and occupies a thread for that."""

POLLS = 1
"""Requests for work that are open at a time. Each one of a frozen process swallows a task until its heartbeat
timeout; and the few tasks of this queue take long, so that fetching them one by one costs nothing."""

CONNECT_PATIENCE_SECONDS = 60.0
"""A worker may be started before the server is."""

GRACEFUL_SECONDS = 10.0
"""To finish what is being written after SIGTERM; waiting legs return within one poll."""

HEARTBEAT_THROTTLE_SECONDS = 5.0
"""At most so long between heartbeats that reach the server: notices a cancelled leg, and shows fresh details."""

_log = structlog.get_logger(__name__)


async def serve(stop: asyncio.Event) -> None:
    """Serve the queue until told to stop."""
    torch.set_num_threads(1)  # merges bring threads of their own; torch's would fight with those of trainers beside us
    client = await connect(patience_seconds=CONNECT_PATIENCE_SECONDS)
    activities = AggregatorActivities(client, loop=asyncio.get_running_loop())
    with ThreadPoolExecutor(MAX_ACTIVITIES, thread_name_prefix="aggregation") as threads:
        worker = Worker(
            client,
            task_queue=AGGREGATOR_QUEUE,
            activities=activities.all,
            activity_executor=threads,
            max_concurrent_activities=MAX_ACTIVITIES,
            max_concurrent_activity_task_polls=POLLS,
            max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_THROTTLE_SECONDS),
            graceful_shutdown_timeout=timedelta(seconds=GRACEFUL_SECONDS),
            on_fatal_error=exit_on_fatal_error,
        )
        async with worker:
            _log.info("serving", queue=AGGREGATOR_QUEUE)
            await stop.wait()


if __name__ == "__main__":
    run_worker(serve)
