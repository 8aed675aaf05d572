"""The control worker: `python -m workers.control`. Serves the queue `campaigns`: workflows and light activities.

It needs no torch. Start several for more throughput or to survive the loss of one; killing it costs nothing but the
seconds until another takes over.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from temporalio.worker import Worker

from activities.nodes import NODE_ACTIVITIES
from activities.records import RECORD_ACTIVITIES
from anabasis.campaign.messages import CAMPAIGN_QUEUE
from workers.connect import connect
from workers.process import exit_on_fatal_error, run_worker
from workflows.campaign import TrainingCampaign
from workflows.node import TrainingNode

CONNECT_PATIENCE_SECONDS = 60.0
"""A worker may be started before the server is."""

GRACEFUL_SECONDS = 5.0
"""For control activities to finish after SIGTERM; all can be repeated."""

MAX_ACTIVITIES = 200
"""At once: releasing a fleet is many polite waits side by side."""

STICKY_SECONDS = 3.0
"""What a killed worker costs its workflows: so long tasks wait for its cache before another worker takes them.
A live worker answers in milliseconds; one that does not in three seconds only has its workflows replayed elsewhere."""

_log = structlog.get_logger(__name__)


def build_worker(client: object, *, max_cached_workflows: int = 1_000) -> Worker:
    """The worker, for the process below and for tests that run it in theirs."""
    return Worker(
        client,  # pyright: ignore[reportArgumentType] - a Client; kept loose so that tests may pass a wrapper
        task_queue=CAMPAIGN_QUEUE,
        workflows=[TrainingCampaign, TrainingNode],
        activities=[*NODE_ACTIVITIES, *RECORD_ACTIVITIES],
        max_concurrent_activities=MAX_ACTIVITIES,
        max_cached_workflows=max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_SECONDS),
        graceful_shutdown_timeout=timedelta(seconds=GRACEFUL_SECONDS),
        on_fatal_error=exit_on_fatal_error,
    )


async def serve(stop: asyncio.Event) -> None:
    """Serve the queue until told to stop."""
    client = await connect(patience_seconds=CONNECT_PATIENCE_SECONDS)
    async with build_worker(client):
        _log.info("serving", queue=CAMPAIGN_QUEUE)
        await stop.wait()


if __name__ == "__main__":
    run_worker(serve)
