"""The campaigns of one Temporal namespace: start, find, list."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from anabasis import __version__
from anabasis.campaign.messages import CAMPAIGN_QUEUE
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.client.handle import CampaignHandle
from anabasis.client.rpc import Deadlines, answered, workers_seen
from anabasis.client.summary import (
    WORKFLOW_TYPE,
    CampaignSummary,
    first_attributes,
    spec_hash,
    summarize,
    workflow_id,
)
from anabasis.errors import AlreadyCompleted, AlreadyRunning

LIST_LIMIT = 1_000
"""Runs in one listing; more are for the Web UI's own queries."""


class Anabasis:
    """Campaigns of one Temporal namespace. See `anabasis.client` for how to use it."""

    def __init__(self, client: Client, *, deadlines: Deadlines | None = None) -> None:
        self.client = client
        self.deadlines = deadlines or Deadlines()

    @classmethod
    async def connect(cls, *, address: str | None = None, deadlines: Deadlines | None = None) -> Anabasis:
        """Connect as the environment, the Temporal profile or the running stack says (see `workers.connect`)."""
        from workers.connect import connect

        return cls(await connect(address=address), deadlines=deadlines)

    async def start(self, spec: CampaignSpec | Mapping[str, Any], *, again: bool = False) -> CampaignHandle:
        """Validate the spec and start the campaign.

        A name whose campaign failed or was cancelled may be started again: it goes on from its newest committed
        version. One that completed goes on only with `again=True`; give it a later target then.

        Raises:
            InvalidSpec: with every problem by path; nothing was started.
            AlreadyRunning, AlreadyCompleted: a campaign has this name.
            TemporalUnavailable: no answer; it may have started, its `status` tells.
        """
        valid = parse_spec(spec if isinstance(spec, CampaignSpec) else dict(spec))
        reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE if again else WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        seconds = self.deadlines.call_seconds
        call = self.client.start_workflow(
            WORKFLOW_TYPE,
            # Only what was said: everything else keeps the default of the workers' version.
            valid.model_dump(mode="json", exclude_unset=True),
            id=workflow_id(valid.name),
            task_queue=CAMPAIGN_QUEUE,
            id_reuse_policy=reuse,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo={"spec_sha256": spec_hash(valid), "anabasis": __version__},
            search_attributes=first_attributes(valid),
            static_summary=f"{valid.recipe}: {valid.target.rounds} rounds on {valid.fleet.slots} nodes",
            rpc_timeout=timedelta(seconds=seconds),
        )
        try:
            started = await answered(call, seconds=seconds, what="start the campaign")
        except WorkflowAlreadyStartedError:
            raise await self._name_taken(valid.name) from None
        return CampaignHandle(self.client, valid.name, deadlines=self.deadlines, run_id=started.result_run_id)

    async def _name_taken(self, name: str) -> AlreadyRunning | AlreadyCompleted:
        summary = await self.campaign(name).summary()
        if summary.state == "completed":
            return AlreadyCompleted(
                f"campaign {name} has completed: go on from its last version with --again and a later target, "
                "or use another name"
            )
        return AlreadyRunning(
            f"campaign {name} is running ({summary.phase}): see `anabasis watch {name}`, or use another name"
        )

    def campaign(self, name: str, *, run_id: str | None = None) -> CampaignHandle:
        """The campaign of this name, whether it exists or not (its methods say).

        With `run_id`, `result` waits for that run and those that continue it, not for one that was started later.
        """
        return CampaignHandle(self.client, name.removeprefix("campaign/"), deadlines=self.deadlines, run_id=run_id)

    async def list(self, *, running_only: bool = False, limit: int = LIST_LIMIT) -> list[CampaignSummary]:
        """The newest run of every campaign that Temporal remembers, newest first. Needs no worker."""
        which = "ExecutionStatus = 'Running'" if running_only else "ExecutionStatus != 'ContinuedAsNew'"
        seconds = self.deadlines.call_seconds

        async def collect() -> dict[str, CampaignSummary]:
            newest: dict[str, CampaignSummary] = {}
            runs = self.client.list_workflows(
                f"WorkflowType = '{WORKFLOW_TYPE}' AND {which}", limit=limit, rpc_timeout=timedelta(seconds=seconds)
            )
            async for run in runs:
                known = newest.get(run.id)
                if known is None or known.started_at < run.start_time.timestamp():
                    newest[run.id] = summarize(run)
            return newest

        found = await answered(collect(), seconds=seconds, what="list the campaigns")
        return sorted(found.values(), key=lambda summary: -summary.started_at)

    async def workers_seen(self) -> int:
        """How many workers serve campaigns now; with none, a started campaign waits for one."""
        return await workers_seen(self.client, seconds=self.deadlines.call_seconds)
