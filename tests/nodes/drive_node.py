"""A workflow that does with one node what the node workflow does: verify, lease, tell how it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutError

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign.messages import LeaseRequest, LeaseResult, NodeReport


class Drive(BaseModel):
    """One lease. `attempts` of the activity; after `cancel_after_seconds` it is cancelled."""

    lease: LeaseRequest
    heartbeat_seconds: float
    attempts: int = 1
    verify: bool = True


class Outcome(BaseModel):
    result: LeaseResult | None = None
    report: NodeReport | None = None
    failure: str = ""
    text: str = ""
    details: dict[str, Any] = {}


@workflow.defn
class DriveNode:
    """Signals: none; cancelling it cancels the lease politely and completes with how that ended."""

    def __init__(self) -> None:
        self._leave = False

    @workflow.signal
    def leave(self) -> None:
        self._leave = True

    @workflow.run
    async def run(self, drive: Drive) -> Outcome:
        queue = drive.lease.node.task_queue
        report: NodeReport | None = None
        if drive.verify:
            report = await workflow.execute_activity(
                "verify_node",
                drive.lease.node,
                task_queue=queue,
                result_type=NodeReport,
                start_to_close_timeout=timedelta(seconds=20),
                schedule_to_start_timeout=timedelta(seconds=30),
            )
        handle = workflow.start_activity(
            "train_lease",
            drive.lease,
            task_queue=queue,
            result_type=LeaseResult,
            start_to_close_timeout=timedelta(seconds=drive.lease.lease_seconds + 60),
            schedule_to_start_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=drive.heartbeat_seconds),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=100),
                maximum_attempts=drive.attempts,
                non_retryable_error_types=["NodeDrained"],
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: handle.done() or self._leave)
        if self._leave:
            handle.cancel()
        try:
            return Outcome(result=await handle, report=report)
        except ActivityError as error:
            return _failed(error, report)


def _failed(error: ActivityError, report: NodeReport | None) -> Outcome:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details = cause.details[0] if cause.details else {}
        return Outcome(failure=cause.type or "", text=cause.message, details=details, report=report)
    if isinstance(cause, TimeoutError):
        last = cause.last_heartbeat_details[0] if cause.last_heartbeat_details else {}
        return Outcome(failure=f"timeout {cause.type.name if cause.type else ''}", details=last, report=report)
    return Outcome(failure="cancelled" if isinstance(cause, CancelledError) else repr(cause), report=report)
