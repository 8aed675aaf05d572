"""One campaign: look at it, steer it, wait for it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from anabasis.campaign import messages as m
from anabasis.campaign.status import CampaignResult, CampaignStatus
from anabasis.client.rpc import Deadlines, answered, answered_by_worker, campaign_failure, translate
from anabasis.client.summary import CampaignSummary, as_it_ended, status_from, summarize, workflow_id
from anabasis.errors import (
    CampaignError,
    CampaignNotFound,
    TemporalUnavailable,
    UpdateRejected,
    WorkersUnavailable,
)

OUTAGE_SECONDS = 600.0
"""`result` rides out an unreachable Temporal for so long: a server's upgrade, a laptop's short sleep."""

_OUTAGE_PAUSE_SECONDS = 1.0


class CampaignHandle:
    """One campaign. Get it from `Anabasis.start` or `Anabasis.campaign`.

    Commands return a `Receipt` when the campaign has accepted them. They raise `UpdateRejected` when it has not,
    `CampaignNotFound`, `WorkersUnavailable` (nobody is there to decide) or `TemporalUnavailable`.
    """

    def __init__(self, client: Client, name: str, *, deadlines: Deadlines, run_id: str | None = None) -> None:
        self.name = name
        self.run_id = run_id
        self._client = client
        self._deadlines = deadlines
        # Without a run id: whatever run is the newest now, since a campaign continues as new.
        self._handle = client.get_workflow_handle(workflow_id(name))

    async def summary(self) -> CampaignSummary:
        """What Temporal itself knows, without asking a worker."""
        seconds = self._deadlines.call_seconds
        call = self._handle.describe(rpc_timeout=timedelta(seconds=seconds))
        try:
            return summarize(await answered(call, seconds=seconds, what=f"describe campaign {self.name}"))
        except CampaignNotFound:
            raise self._not_found() from None

    async def status(self) -> CampaignStatus:
        """Everything about the campaign, also after its end as long as Temporal keeps its history.

        Raises `WorkersUnavailable` when the campaign is open and no worker answers; `summary` answers even then.
        """
        summary = await self.summary()
        try:
            return as_it_ended(await self._query_status(), summary)
        except (WorkersUnavailable, CampaignError):
            # A campaign that is over can be told of, if less fully, by Temporal alone.
            if summary.state == "running":
                raise
            return status_from(summary)

    async def _query_status(self) -> CampaignStatus:
        seconds = self._deadlines.query_seconds
        call = self._handle.query("status", result_type=dict[str, Any], rpc_timeout=timedelta(seconds=seconds))
        try:
            raw = await answered_by_worker(
                self._client, call, seconds=seconds, what=f"answer about campaign {self.name}"
            )
            return CampaignStatus.model_validate(raw)
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError, ValidationError) as error:
            raise WorkersUnavailable(
                f"the workers cannot answer about campaign {self.name} ({str(error).splitlines()[0]}): "
                "are they of this version? See `anabasis logs control`"
            ) from error

    async def pause(self, *, reason: str = "", release_nodes: bool = False) -> m.Receipt:
        """Finish the round in flight, write a checkpoint, then hold; with `release_nodes` pay for none meanwhile."""
        return await self._update("pause", m.PauseCommand, reason=reason, release_nodes=release_nodes)

    async def resume(self) -> m.Receipt:
        """Go on after a pause."""
        return await self._update("resume", m.ResumeCommand)

    async def scale(self, slots: int) -> m.Receipt:
        """Want so many nodes; surplus ones leave after their round."""
        return await self._update("scale", m.ScaleCommand, slots=slots)

    async def drain(self, slot: int, *, reason: str = "") -> m.Receipt:
        """Let the node of one slot finish its round and leave; the slot is filled again."""
        return await self._update("drain", m.DrainCommand, slot=slot, reason=reason)

    async def extend(self, *, rounds: int | None = None, tokens: int | None = None) -> m.Receipt:
        """Set a later target."""
        return await self._update("extend", m.ExtendCommand, rounds=rounds, tokens=tokens)

    async def set_budget(self, *, max_cost: float | None, max_node_hours: float | None) -> m.Receipt:
        """Replace both limits; None = no limit."""
        return await self._update("set_budget", m.SetBudgetCommand, max_cost=max_cost, max_node_hours=max_node_hours)

    async def checkpoint_now(self) -> m.Receipt:
        """Write a checkpoint after the round in flight."""
        return await self._update("checkpoint_now", m.CheckpointCommand)

    async def approve(self) -> m.Receipt:
        """Publish: for a campaign with `control.approve_publish`."""
        return await self._update("approve", m.ApproveCommand)

    async def cancel(self, *, reason: str = "") -> None:
        """Ask for an orderly end: nodes are released, the last checkpoint stays. `result` tells when it is over."""
        summary = await self.summary()
        if summary.state != "running":
            raise self._over(summary)
        seconds = self._deadlines.call_seconds
        call = self._handle.cancel(reason=reason, rpc_timeout=timedelta(seconds=seconds))
        await answered(call, seconds=seconds, what=f"cancel campaign {self.name}")

    async def result(self, *, timeout_seconds: float | None = None) -> CampaignResult:
        """Wait for the end, through outages of Temporal of up to ten minutes.

        Raises:
            CampaignFailed: it failed, was cancelled or terminated (`failure` says which).
            TimeoutError: `timeout_seconds` are over; the campaign goes on.
        """
        async with asyncio.timeout(timeout_seconds):
            return await self._result()

    async def _result(self) -> CampaignResult:
        handle = self._client.get_workflow_handle(
            workflow_id(self.name), run_id=self.run_id, result_type=dict[str, Any]
        )
        unreachable_since: float | None = None
        while True:
            began = time.monotonic()
            try:
                return CampaignResult.model_validate(await handle.result())
            except WorkflowFailureError as error:
                raise campaign_failure(self.name, error) from error
            except RPCError as error:
                failure = translate(error, what=f"tell how campaign {self.name} ended")
                if isinstance(failure, CampaignNotFound):
                    raise self._not_found() from None
                if not isinstance(failure, TemporalUnavailable):
                    raise failure from error
            now = time.monotonic()
            # A call that held for longer than a retrying one can was connected: this is a new outage.
            if unreachable_since is None or now - began > 2 * self._deadlines.call_seconds:
                unreachable_since = now
            if now - unreachable_since > OUTAGE_SECONDS:
                raise failure
            await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)

    async def _update(self, name: str, command: type[m.Message], **fields: Any) -> m.Receipt:
        try:
            argument = command(**fields).model_dump(mode="json")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UpdateRejected(f"{name}: {field}: {first['msg']}, got {first['input']!r}") from None
        seconds = self._deadlines.update_seconds
        call = self._handle.execute_update(
            name, argument, result_type=dict[str, Any], rpc_timeout=timedelta(seconds=seconds)
        )
        try:
            raw = await answered_by_worker(self._client, call, seconds=seconds, what=f"{name} campaign {self.name}")
        except WorkflowUpdateFailedError as error:
            text = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
            raise UpdateRejected(f"campaign {self.name} refuses to {name}: {text}") from error
        except CampaignNotFound:  # also what Temporal says of one that is over
            raise self._over(await self.summary()) from None
        return m.Receipt.model_validate(raw)

    def _not_found(self) -> CampaignNotFound:
        return CampaignNotFound(f"there is no campaign {self.name!r}: see `anabasis list`")

    def _over(self, summary: CampaignSummary) -> UpdateRejected:
        how = "with --again and a later target" if summary.state == "completed" else "as it was"
        return UpdateRejected(
            f"campaign {self.name} is over ({summary.state}): it goes on from its last version when it is started {how}"
        )
