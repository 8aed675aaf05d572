"""One node's task queue, served by plain calls instead of a `Worker` object.

A simulated machine must be able to vanish: no goodbye to the server, no results of what ran, a poll that just breaks
off. A `Worker` cannot (its shutdown is orderly), but a cancelled call can. It also costs a task instead of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError, RPCStatusCode

POLL_SECONDS = 70.0
"""The server answers an idle poll after 60 s."""

CALL_SECONDS = 10.0
"""For a heartbeat or a result."""

PAUSE_SECONDS = 1.0
"""After a call that failed: the server is down or restarts."""

_log = structlog.get_logger(__name__)


class Beat:
    """Reports progress of one activity task, and hears whether it is still wanted.

    Attributes:
        every_seconds: between heartbeats.
    """

    def __init__(self, client: Client, *, token: bytes, identity: str, every_seconds: float) -> None:
        self.every_seconds = every_seconds
        self._client = client
        self._token = token
        self._identity = identity

    async def send(self, details: dict[str, Any]) -> str:
        """`wanted`, `cancelled`, `lost` (the server knows of no such task any more) or `unheard` (no answer)."""
        request = RecordActivityTaskHeartbeatRequest(
            namespace=self._client.namespace,
            task_token=self._token,
            identity=self._identity,
            details=Payloads(payloads=await self._client.data_converter.encode([details])),
        )
        try:
            answer = await self._client.workflow_service.record_activity_task_heartbeat(
                request, timeout=timedelta(seconds=CALL_SECONDS)
            )
        except RPCError as error:
            return "lost" if error.status is RPCStatusCode.NOT_FOUND else "unheard"
        return "cancelled" if answer.cancel_requested else "wanted"


Activity = Callable[[Any, Beat], Awaitable[Any]]
"""(argument, beat) → result. `None` instead of a result: say nothing; the server will notice by itself."""


class Queue:
    """Serves activities of one queue, one task after the other begun as it comes, until cancelled.

    Args:
        activities: name → (type of its argument, function).
        on_contact: called whenever the server has answered.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        identity: str,
        activities: dict[str, tuple[type, Activity]],
        beats_per_timeout: float,
        on_contact: Callable[[], None],
    ) -> None:
        self._client = client
        self._name = name
        self._identity = identity
        self._activities = activities
        self._beats_per_timeout = beats_per_timeout
        self._on_contact = on_contact
        self._running: set[asyncio.Task[None]] = set()
        self._frozen = False

    def freeze(self) -> None:
        """As a stopped process: the poll that is open swallows what it gets, and no other follows."""
        self._frozen = True

    async def serve(self) -> None:
        """Poll and run. When it is cancelled, everything that runs breaks off without a word."""
        request = PollActivityTaskQueueRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=self._name), identity=self._identity
        )
        try:
            while True:
                task = await self._poll(request)
                if self._frozen:
                    await asyncio.Event().wait()
                if task is not None:
                    running = asyncio.create_task(self._run(task))
                    self._running.add(running)
                    running.add_done_callback(self._running.discard)
        finally:
            for running in list(self._running):
                running.cancel()

    async def settle(self, *, seconds: float) -> None:
        """Wait until what runs has ended and said so."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=seconds)

    async def _poll(self, request: PollActivityTaskQueueRequest) -> PollActivityTaskQueueResponse | None:
        try:
            task = await self._client.workflow_service.poll_activity_task_queue(
                request, timeout=timedelta(seconds=POLL_SECONDS)
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.DEADLINE_EXCEEDED:
                _log.debug("poll_failed", queue=self._name, reason=error.message)
                await asyncio.sleep(PAUSE_SECONDS)
            return None
        self._on_contact()
        return task if task.task_token else None

    async def _run(self, task: PollActivityTaskQueueResponse) -> None:
        beat = Beat(
            self._client,
            token=task.task_token,
            identity=self._identity,
            every_seconds=_seconds(task.heartbeat_timeout) / self._beats_per_timeout,
        )
        try:
            kind, function = self._activities[task.activity_type.name]
            (argument,) = await self._client.data_converter.decode(task.input.payloads, [kind])
            result = await function(argument, beat)
        except FailureError as error:
            await self._fail(task.task_token, error)
        except Exception as error:  # the border of an activity: the server must hear of it
            _log.exception("activity_failed", queue=self._name)
            await self._fail(task.task_token, ApplicationError(str(error), type=type(error).__name__))
        else:
            if result is not None:
                await self._complete(task.task_token, result)

    async def _complete(self, token: bytes, result: Any) -> None:
        payloads = Payloads(payloads=await self._client.data_converter.encode([result]))
        request = RespondActivityTaskCompletedRequest(
            namespace=self._client.namespace, task_token=token, identity=self._identity, result=payloads
        )
        await self._tell(
            lambda: self._client.workflow_service.respond_activity_task_completed(
                request, retry=True, timeout=timedelta(seconds=CALL_SECONDS)
            )
        )

    async def _fail(self, token: bytes, error: FailureError) -> None:
        failure = Failure()
        await self._client.data_converter.encode_failure(error, failure)
        request = RespondActivityTaskFailedRequest(
            namespace=self._client.namespace, task_token=token, identity=self._identity, failure=failure
        )
        await self._tell(
            lambda: self._client.workflow_service.respond_activity_task_failed(
                request, retry=True, timeout=timedelta(seconds=CALL_SECONDS)
            )
        )

    async def _tell(self, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            await call()
        except RPCError as error:  # not wanted any more, or the server is down: its own timeouts deal with both
            _log.debug("result_not_delivered", queue=self._name, reason=error.message)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
