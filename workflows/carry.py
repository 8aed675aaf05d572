"""Carrying decisions out: each function does one, and feeds its outcome back as an event. None of them raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign import events as e
    from anabasis.campaign import messages as m
    from anabasis.campaign.node_messages import NodeWorkflowInput, StopSignal
    from anabasis.campaign.state import CampaignState
    from workflows.node import TrainingNode

Feed = Callable[[e.Event], None]

LEG_SECONDS = 86_400.0
"""A leg may wait for its quorum as long as it takes; once a day it is started anew (it resumes from the store)."""

JOB_SECONDS = 3_600.0
"""Checkpoint, rollback, publish: at most writing and reading the model a few times, and one evaluation."""

PERMANENT = frozenset({"UserCodeError", "InvalidSpec", "StoreDenied", "CorruptData", "ObjectNotFound"})
"""Failures of a job that another try cannot mend."""

_RECORD_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=10), maximum_attempts=30
)
_JOB_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=5
)


class RunningJob:
    """Lets the shell interrupt the activity of the job in flight."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._handle: workflow.ActivityHandle[Any] | None = None
        self._wanted = False

    def attach(self, handle: workflow.ActivityHandle[Any]) -> None:
        self._handle = handle
        if self._wanted:
            handle.cancel()

    def interrupt(self) -> None:
        """The activity answers with what it has; repeated calls change nothing."""
        if not self._wanted and self._handle is not None:
            self._handle.cancel()
        self._wanted = True


async def run_job(state: CampaignState, job: e.StartJob, running: RunningJob, feed: Feed) -> None:
    """Run the one aggregator activity and report how it ended."""
    activity, request, result_type, limit = _job(state, job)
    handle = workflow.start_activity(
        activity,
        request,
        result_type=result_type,
        task_queue=m.AGGREGATOR_QUEUE,
        start_to_close_timeout=timedelta(seconds=limit),
        heartbeat_timeout=timedelta(seconds=min(30.0, state.spec.health.heartbeat_seconds)),
        retry_policy=_JOB_RETRY,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"{job.kind} {job.version}",
    )
    running.attach(handle)
    try:
        result = await handle
    except (asyncio.CancelledError, CancelledError):
        feed(_failed(job, "Interrupted", "interrupted", permanent=False))
        return
    except ActivityError as error:
        cause = error.cause
        kind = (cause.type or "") if isinstance(cause, ApplicationError) else type(cause).__name__
        if isinstance(cause, CancelledError):
            kind = "Interrupted"
        feed(_failed(job, kind, f"{job.kind}: {cause or error}", permanent=kind in PERMANENT))
        return
    now = workflow.time()
    if isinstance(result, m.LegResult):
        feed(e.LegEnded(at=now, job=job.number, result=result))
    elif isinstance(result, m.CheckpointResult):
        feed(e.CheckpointWritten(at=now, job=job.number, result=result))
    elif isinstance(result, m.RollbackResult):
        feed(e.RolledBack(at=now, job=job.number, result=result))
    else:
        feed(e.Published(at=now, job=job.number, result=result))


def _failed(job: e.StartJob, failure: str, text: str, *, permanent: bool) -> e.JobFailed:
    return e.JobFailed(at=workflow.time(), job=job.number, failure=failure, text=text[:1_000], permanent=permanent)


def _job(state: CampaignState, job: e.StartJob) -> tuple[str, m.Message, type[Any], float]:
    name, url = state.name, state.store_url
    match job.kind:
        case "leg":
            leg = m.LegRequest(
                campaign=name,
                store_url=url,
                until_version=job.version,
                progress_seconds=state.spec.control.progress_seconds,
                from_version=state.accounted_version,
            )
            return "advance_leg", leg, m.LegResult, LEG_SECONDS
        case "checkpoint":
            checkpoint = m.CheckpointRequest(
                campaign=name, store_url=url, version=job.version, keep=state.spec.checkpoint.keep
            )
            return "write_checkpoint", checkpoint, m.CheckpointResult, JOB_SECONDS
        case "rollback":
            # The checkpoint that was taken last may carry the seed of the divergence, but it was finite: try it.
            rollback = m.RollbackRequest(
                campaign=name,
                store_url=url,
                from_version=job.version,
                not_after=state.checkpoint_version if state.checkpoint_version is not None else 0,
            )
            return "roll_back", rollback, m.RollbackResult, JOB_SECONDS
        case "publish":
            publish = m.PublishRequest(campaign=name, store_url=url, version=job.version)
            return "publish_model", publish, m.PublishResult, JOB_SECONDS


async def start_node(state: CampaignState, node: m.NodeIdentity, feed: Feed) -> None:
    """Start the node's workflow; it lives on by itself."""
    spec = state.spec
    heartbeat = spec.health.heartbeat_seconds
    given = NodeWorkflowInput(
        node=node,
        provider=spec.fleet.provider,
        provider_options=spec.fleet.provider_options,
        store_url=state.store_url,
        heartbeat_seconds=heartbeat,
        stall_seconds=spec.health.stall_seconds or heartbeat,
        boot_timeout_seconds=spec.fleet.boot_timeout_seconds,
        drain_timeout_seconds=spec.fleet.drain_timeout_seconds,
    )
    try:
        await workflow.start_child_workflow(
            TrainingNode.run,
            given,
            id=node.workflow_id,
            # Continue-as-new of the campaign would otherwise end the owner of a machine, and leak the machine.
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            static_summary=f"node {node.node_id} of {node.campaign}",
        )
    except (WorkflowAlreadyStartedError, FailureError):
        feed(e.NodeStartRefused(at=workflow.time(), slot=node.slot, attempt=node.attempt))


async def stop_node(decision: e.StopNode) -> None:
    """Tell a node to leave. When its workflow is over already, its last report is on the way."""
    handle = workflow.get_external_workflow_handle(decision.node.workflow_id)
    try:
        await handle.signal("stop", StopSignal(polite=decision.polite, reason=decision.reason))
    except FailureError as error:
        workflow.logger.info("node %s does not listen: %s", decision.node.node_id, error)


async def write_roster(state: CampaignState, decision: e.WriteRoster, feed: Feed) -> None:
    """Publish who belongs to the campaign."""
    request = m.WriteRosterRequest(store_url=state.store_url, roster=decision.roster.model_dump(mode="json"))
    feed(e.RosterWritten(at=workflow.time(), ok=await _record("write_roster", request)))


async def write_journal(state: CampaignState, decision: e.WriteJournal, feed: Feed) -> None:
    """Move incidents into the store."""
    request = m.WriteJournalRequest(
        campaign=state.name, store_url=state.store_url, sequence=decision.sequence, entries=decision.entries
    )
    ok = await _record("write_journal", request)
    feed(e.JournalWritten(at=workflow.time(), through=decision.through, ok=ok, final=decision.final))


async def _record(activity: str, request: m.Message) -> bool:
    try:
        await workflow.execute_activity(
            activity,
            request,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=_RECORD_RETRY,
        )
    except (ActivityError, asyncio.CancelledError) as error:
        workflow.logger.warning("%s failed: %s", activity, error)
        return False
    return True
