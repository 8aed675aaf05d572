"""The node workflow: one machine in one slot, from request to the read that says it is gone.

It owns the machine: it ends only when the provider says `absent`. It outlives its campaign's continue-as-new
(parent close policy ABANDON) and reports by signal to the campaign's workflow id.
"""

from __future__ import annotations

import asyncio
import builtins
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    TimeoutError,
    TimeoutType,
)

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign import messages as m
    from anabasis.campaign.node_messages import NodeWorkflowInput, StopSignal

Received = TypeVar("Received", bound=m.Message)

LEASE_SECONDS = 1_800.0
"""A node asks so often whether its campaign still exists: an abandoned machine costs at most this."""

QUEUE_SECONDS = 60.0
"""A live agent polls at once; a lease that nobody takes for so long makes us look at the machine."""

QUIET_BOOT_SECONDS = 10.0
"""A machine that is there within this is reported once, as ready: two events of history saved for each node."""

UNKNOWN_RETRY_SECONDS = 15.0
"""Between looks at a machine whose provider does not say what it is."""

RELEASE_RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Between tries to release; the last one for ever: a machine is never given up."""

_SHORT = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=15),
    maximum_attempts=5,
    # The campaign decides what a refusal means; asking the same offer again is not for us.
    non_retryable_error_types=["CapacityError", "QuotaError", "InvalidSpec"],
)


@workflow.defn(name="TrainingNode", failure_exception_types=[Exception])
class TrainingNode:
    """See the module's docstring."""

    @workflow.init
    def __init__(self, given: NodeWorkflowInput) -> None:
        self._in = given
        self._stop: StopSignal | None = None
        self._failure: tuple[str, str, float | None] | None = None
        self._price: float | None = None

    @workflow.signal
    def stop(self, order: Any = None, *_: Any) -> None:
        """Leave (a `StopSignal`). A second order may only make the first one stricter."""
        read = read_signal(StopSignal, order)
        if read is not None and (self._stop is None or not read.polite):
            self._stop = read

    @workflow.run
    async def run(self, given: NodeWorkflowInput) -> str:
        """Returns why the node ended."""
        try:
            if not given.releasing:
                await self._live()
        except (asyncio.CancelledError, CancelledError):
            self._stop = self._stop or StopSignal(polite=False, reason="cancelled")
        except ActivityError as error:
            self._failed(*_classify(error))
        await self._release()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._failure[0] if self._failure else (self._stop.reason if self._stop else "finished")

    async def _live(self) -> None:
        handle = await workflow.execute_activity(
            "request_node",
            m.NodeRequest(
                node=self._in.node,
                provider=self._in.provider,
                provider_options=self._in.provider_options,
                store_url=self._in.store_url,
                heartbeat_seconds=self._in.heartbeat_seconds,
                stall_seconds=self._in.stall_seconds,
                shutdown_grace_seconds=min(20.0, self._in.drain_timeout_seconds),
            ),
            result_type=m.NodeHandle,
            start_to_close_timeout=timedelta(seconds=60),
            schedule_to_close_timeout=timedelta(seconds=max(120.0, self._in.boot_timeout_seconds)),
            retry_policy=_SHORT,
            summary=f"request {self._in.node.node_id}",
        )
        self._in = self._in.model_copy(update={"paid_from": workflow.time()})
        self._price = handle.price_per_hour
        if workflow.patched("quiet-boot"):
            ready = await self._verify_quietly()
        else:
            await self._tell("booting")
            ready = self._stop is None and await self._verify()
        if not ready:
            return
        while self._stop is None and self._failure is None:
            await self._lease()

    async def _verify_quietly(self) -> bool:
        """Say that the machine boots only when that takes longer than saying it is worth; a stop ends the wait."""
        verifying = asyncio.create_task(self._verify())

        def over() -> bool:
            return verifying.done() or self._stop is not None

        try:
            await workflow.wait_condition(over, timeout=QUIET_BOOT_SECONDS)
        except builtins.TimeoutError:
            await self._tell("booting")
            await workflow.wait_condition(over)
        if self._stop is None:
            return await verifying
        verifying.cancel()
        return False

    async def _verify(self) -> bool:
        try:
            report = await workflow.execute_activity(
                "verify_node",
                self._in.node,
                result_type=m.NodeReport,
                task_queue=self._in.node.task_queue,
                schedule_to_start_timeout=timedelta(seconds=self._in.boot_timeout_seconds),
                start_to_close_timeout=timedelta(seconds=15),
                retry_policy=RetryPolicy(maximum_attempts=4),
                summary="is the agent there",
            )
        except ActivityError as error:
            if self._stop is not None:
                return False
            described = await self._describe()
            self._failed("BootFailed", f"no agent within boot_timeout_seconds ({described.state}): {_text(error)}")
            return False
        return await self._tell("ready", report=report)

    async def _lease(self) -> None:
        lease = workflow.start_activity(
            "train_lease",
            m.LeaseRequest(
                node=self._in.node,
                store_url=self._in.store_url,
                lease_seconds=LEASE_SECONDS,
                stall_seconds=self._in.stall_seconds,
            ),
            result_type=m.LeaseResult,
            task_queue=self._in.node.task_queue,
            schedule_to_start_timeout=timedelta(seconds=QUEUE_SECONDS),
            start_to_close_timeout=timedelta(seconds=LEASE_SECONDS + 120),
            heartbeat_timeout=timedelta(seconds=self._in.heartbeat_seconds),
            # Retried here, not by the server: between two tries we look whether the machine exists.
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"lease {self._in.node.node_id}",
        )
        await workflow.wait_condition(lambda: lease.done() or self._stop is not None)
        if not lease.done():
            lease.cancel()
            limit = self._in.drain_timeout_seconds if self._stop and self._stop.polite else 10.0
            await workflow.wait([lease], timeout=limit)
            if not lease.done():
                return
        try:
            result = lease.result()
        except (asyncio.CancelledError, CancelledError):
            self._stop = self._stop or StopSignal(polite=False, reason="cancelled")
            return
        except ActivityError as error:
            if self._stop is None:
                await self._judge(error)
            return
        if result.reason == "finished":
            self._stop = self._stop or StopSignal(polite=False, reason="finished")
        elif result.reason == "drained" and self._stop is None:
            self._failed("NodeDrained", "the node handed its work back")
        elif self._stop is None:
            await self._tell("training")

    async def _judge(self, error: ActivityError) -> None:
        """A lease broke. Only a read of the provider says whether the machine is gone; unknown is not dead."""
        failure, text, last_progress = _classify(error)
        if failure not in ("TimedOut", "Unheard", "Superseded", "WorkerShutdown"):
            self._failed(failure, text, last_progress)
            return
        unheard, unknown = failure == "Unheard", False
        while self._stop is None:
            described = await self._describe()
            if described.state in ("absent", "stopping"):
                self._failed("Lost", f"{text}; the provider says {described.state}", last_progress)
                return
            if described.state != "unknown":
                if unheard:
                    self._failed("Lost", f"the machine runs but its agent takes no work: {text}", last_progress)
                elif unknown and workflow.patched("seen-again"):
                    await self._tell("training")  # else it would count as unknown until its lease is over
                return  # alive: lease again, the agent adopts its running trainer
            unknown = True
            await self._tell("unknown", detail=described.detail)
            await self._pause(UNKNOWN_RETRY_SECONDS)

    async def _describe(self) -> m.NodeDescription:
        try:
            return await workflow.execute_activity(
                "describe_node",
                self._command(),
                result_type=m.NodeDescription,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=3),
            )
        except ActivityError as error:
            return m.NodeDescription(state="unknown", detail=_text(error))

    async def _release(self) -> None:
        if self._failure is not None:
            failure, text, last = self._failure
            await self._tell("failed", failure=failure, detail=text, last_progress_at=last)
        attempt = 0
        while True:
            grace = 5.0 if self._failure or (self._stop and not self._stop.polite) else 20.0
            try:
                described = await workflow.execute_activity(
                    "release_node",
                    self._command(grace_seconds=grace),
                    result_type=m.NodeDescription,
                    start_to_close_timeout=timedelta(seconds=grace + 60),
                    heartbeat_timeout=timedelta(seconds=30),
                    retry_policy=RetryPolicy(maximum_attempts=3),
                    summary=f"release {self._in.node.node_id}",
                )
                if described.state == "absent":
                    break
            except ActivityError as error:
                if self._was_never_made(error):
                    break
                workflow.logger.warning("release failed, trying again: %s", _text(error))
            except (asyncio.CancelledError, CancelledError):
                pass  # a machine is released even by a cancelled workflow
            await self._pause(RELEASE_RETRY_SECONDS[min(attempt, len(RELEASE_RETRY_SECONDS) - 1)])
            attempt += 1
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._in.model_copy(update={"releasing": True}))
        await self._tell("gone")

    def _was_never_made(self, error: ActivityError) -> bool:
        """Options that the provider refused when it was asked for the machine: it will not take them back either."""
        kinds = {_classify(error)[0], self._failure[0] if self._failure else ""}
        return kinds == {"InvalidSpec"} and workflow.patched("never-made")

    async def _pause(self, seconds: float) -> None:
        try:
            await workflow.sleep(seconds)
        except (asyncio.CancelledError, CancelledError):
            self._stop = self._stop or StopSignal(polite=False, reason="cancelled")

    def _command(self, *, grace_seconds: float = 20.0) -> m.NodeCommand:
        return m.NodeCommand(
            node=self._in.node,
            provider=self._in.provider,
            provider_options=self._in.provider_options,
            grace_seconds=grace_seconds,
        )

    def _failed(self, failure: str, text: str, last_progress_at: float | None = None) -> None:
        if self._failure is None:
            self._failure = (failure, text[:1_000], last_progress_at)

    async def _tell(
        self,
        kind: str,
        *,
        failure: str = "",
        detail: str = "",
        last_progress_at: float | None = None,
        report: m.NodeReport | None = None,
    ) -> bool:
        """Report to the campaign. When it exists no more, there is nobody to train for: leave."""
        node, now = self._in.node, workflow.time()
        event = m.NodeEvent.model_validate(
            {
                "slot": node.slot,
                "attempt": node.attempt,
                "nonce": node.nonce,
                "kind": kind,
                "at": now,
                "failure": failure,
                "detail": detail,
                "noticed_at": now if kind == "failed" else None,
                "last_progress_at": last_progress_at,
                "price_per_hour": self._price,
                "paid_from": self._in.paid_from,
                "report": report,
            }
        )
        try:
            campaign = workflow.get_external_workflow_handle(f"campaign/{node.campaign}")
            await campaign.signal("node_event", event)
        except asyncio.CancelledError:
            self._stop = self._stop or StopSignal(polite=False, reason="cancelled")
            return False
        except FailureError as error:
            workflow.logger.info("the campaign does not listen any more: %s", error)
            self._stop = self._stop or StopSignal(polite=False, reason="the campaign is over")
            return False
        return True


def read_signal(kind: type[Received], given: Any) -> Received | None:
    """What a signal carries; None (and a line in the log) when it makes no sense."""
    try:
        return kind.model_validate(given)
    except ValueError:
        workflow.logger.warning("a signal without a valid %s was dropped", kind.__name__)
        return None


def _classify(error: ActivityError) -> tuple[str, str, float | None]:
    """(failure type, text, when progress was last seen) of a failed activity."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details = cause.details[0] if cause.details else None
        last = details.get("last_progress_at") if isinstance(details, dict) else None  # pyright: ignore
        return cause.type or "ProviderError", cause.message, last if isinstance(last, int | float) else None
    if isinstance(cause, TimeoutError):
        beat = cause.last_heartbeat_details[0] if cause.last_heartbeat_details else None
        last = beat.get("at") if isinstance(beat, dict) else None  # pyright: ignore
        kind = "Unheard" if cause.type is TimeoutType.SCHEDULE_TO_START else "TimedOut"
        text = "no agent took the work" if kind == "Unheard" else "no heartbeat from the node"
        return kind, text, last if isinstance(last, int | float) else None
    return "TimedOut", _text(error), None


def _text(error: ActivityError) -> str:
    return str(error.cause or error)[:500]
