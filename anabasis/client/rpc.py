"""Calls to Temporal with a deadline, and what their failures mean for someone who asked about a campaign.

The SDK's own timeouts are per attempt: waiting for a result or for an update goes on for ever without a worker.
Everything here ends, with one error of `anabasis.errors`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.service import RPCError, RPCStatusCode

from anabasis.campaign.messages import CAMPAIGN_QUEUE
from anabasis.errors import (
    AnabasisError,
    CampaignError,
    CampaignFailed,
    CampaignNotFound,
    StackError,
    TemporalUnavailable,
    WorkersUnavailable,
)

T = TypeVar("T")

POLLER_FRESH_SECONDS = 90.0
"""A worker's poll is answered after 60 s at the latest and is then renewed: one older than this is of a dead worker."""

LOOK_FOR_WORKERS_SECONDS = 2.0
"""An answer that takes longer than this (usually: 10 ms) makes us look whether any worker is there at all."""

_CANNOT_NOW = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,  # what the SDK makes of a deadline
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
)
_NOT_ALLOWED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long to wait for an answer.

    Attributes:
        call_seconds: of the server alone, which answers in milliseconds; leaves room for a fail-over.
        query_seconds: of a worker, which may first have to replay a long history (5 000 events per second).
        update_seconds: of a worker that has to take a decision, and may be restarting.
    """

    call_seconds: float = 10.0
    query_seconds: float = 20.0
    update_seconds: float = 30.0


async def answered(call: Awaitable[T], *, seconds: float, what: str) -> T:
    """The server's answer. Raises `TemporalUnavailable` after the deadline, and `translate`s failures."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise TemporalUnavailable(
            f"Temporal did not {what} within {seconds:g} s: try again, or `anabasis up`"
        ) from error
    except RPCError as error:
        raise translate(error, what=what) from error


async def answered_by_worker(client: Client, call: Awaitable[T], *, seconds: float, what: str) -> T:
    """The same for what only a worker can answer. Raises `WorkersUnavailable` as soon as none is seen."""
    task = asyncio.ensure_future(call)
    deadline = time.monotonic() + seconds
    try:
        done, _ = await asyncio.wait({task}, timeout=min(seconds, LOOK_FOR_WORKERS_SECONDS))
        if not done and await workers_seen(client, seconds=max(0.5, deadline - time.monotonic())) == 0:
            raise WorkersUnavailable(f"no worker serves the queue {CAMPAIGN_QUEUE}: start one with `anabasis up`")
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        if done:
            return task.result()
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
        failure = translate(error, what=what) if isinstance(error, RPCError) else _silent(what, seconds)
        raise failure from error
    finally:
        task.cancel()
    raise _silent(what, seconds)


async def workers_seen(client: Client, *, seconds: float) -> int:
    """How many workers poll the campaigns' queue (one that was killed counts for another 90 s)."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=CAMPAIGN_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    call = client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=seconds))
    answer = await answered(call, seconds=seconds, what=f"describe the queue {CAMPAIGN_QUEUE}")
    oldest = time.time() - POLLER_FRESH_SECONDS
    return len({poller.identity for poller in answer.pollers if poller.last_access_time.seconds >= oldest})


def translate(error: RPCError, *, what: str) -> AnabasisError:
    """What a failed call means; `what` completes "Temporal did not …"."""
    text = error.message.splitlines()[0][:300] if error.message else error.status.name
    if error.status is RPCStatusCode.NOT_FOUND:
        if text.startswith("Namespace"):
            return StackError(f"{text} Set TEMPORAL_NAMESPACE, or create it")
        return CampaignNotFound(f"there is no such campaign ({text}): see `anabasis list`")
    if error.status in _CANNOT_NOW:
        return TemporalUnavailable(f"Temporal did not {what} ({text}): try again, or `anabasis up`")
    if error.status in _NOT_ALLOWED:
        return StackError(f"Temporal does not let us {what} ({text}): check the profile or TEMPORAL_API_KEY")
    if "search attribute" in text:
        return StackError(f"{text}: register the search attributes with `anabasis up --external`")
    return CampaignError(f"Temporal did not {what}: {text} ({error.status.name})")


def campaign_failure(name: str, error: WorkflowFailureError) -> CampaignFailed:
    """How a campaign ended, with the innermost reason in words."""
    cause: BaseException = error.cause
    match cause:
        case CancelledError():
            return CampaignFailed(f"campaign {name} was cancelled", failure="Cancelled")
        case TerminatedError():
            return CampaignFailed(f"campaign {name} was terminated: {cause.message}", failure="Terminated")
        case TemporalTimeoutError():
            return CampaignFailed(f"campaign {name} ran out of its execution time", failure="TimedOut")
        case _:
            pass
    while isinstance(cause.__cause__, ApplicationError):
        cause = cause.__cause__
    kind = (cause.type if isinstance(cause, ApplicationError) else None) or type(cause).__name__
    text = cause.message if isinstance(cause, ApplicationError) else str(cause)
    return CampaignFailed(f"campaign {name} failed: {text}", failure=kind)


def _silent(what: str, seconds: float) -> WorkersUnavailable:
    return WorkersUnavailable(
        f"no worker did {what} within {seconds:g} s: see `anabasis logs control`; the campaign itself is safe"
    )
