"""Whether the parts of a stack answer: Temporal itself, and somebody polling a task queue."""

from __future__ import annotations

import time
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from anabasis.campaign.messages import AGGREGATOR_QUEUE, CAMPAIGN_QUEUE
from workers.temporal_server import RPC_TIMEOUT

POLLER_FRESH_SECONDS = 90.0
"""A worker that lives polls at least once a minute; the server lists one for five minutes after its last poll."""


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Something that a worker has to poll for."""

    queue: str
    workflows: bool = False

    @property
    def kind(self) -> TaskQueueType.ValueType:
        return TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if self.workflows else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


CONTROL_PARTS = (QueuePart(CAMPAIGN_QUEUE, workflows=True), QueuePart(CAMPAIGN_QUEUE))
AGGREGATOR_PARTS = (QueuePart(AGGREGATOR_QUEUE),)


async def is_polled(client: Client, part: QueuePart, *, since: float | None = None) -> bool:
    """Whether somebody has polled for this part since a time (seconds since the epoch; None: lately)."""
    since = time.time() - POLLER_FRESH_SECONDS if since is None else since
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=part.queue), task_queue_type=part.kind
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request, timeout=RPC_TIMEOUT)
    except RPCError:
        return False
    return any(
        poller.last_access_time.seconds + poller.last_access_time.nanos / 1e9 >= since for poller in answer.pollers
    )


async def are_polled(client: Client, parts: tuple[QueuePart, ...], *, since: float | None = None) -> bool:
    """Whether every part is polled."""
    for part in parts:
        if not await is_polled(client, part, since=since):
            return False
    return True
