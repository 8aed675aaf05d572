"""What Temporal itself knows of a campaign: its ids, and its line in a listing."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from anabasis.campaign.spec import CampaignSpec
from anabasis.campaign.status import CampaignStatus, Phase

WORKFLOW_TYPE = "TrainingCampaign"

State = Literal["running", "completed", "failed", "cancelled", "terminated", "timed_out"]

_STATES: dict[WorkflowExecutionStatus | None, State] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}
_LAST_PHASE: dict[State, Phase] = {
    "completed": Phase.COMPLETED,
    "failed": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
    "terminated": Phase.FAILED,
    "timed_out": Phase.FAILED,
}


class CampaignSummary(BaseModel):
    """A campaign without asking a worker. Times are seconds since the epoch.

    Attributes:
        state: of the workflow.
        phase: what the campaign said last, or how it ended.
        round, loss, tokens, ready_nodes, cost: None until the campaign has said.
        started_at: of the newest run (a campaign of months has many).
    """

    model_config = ConfigDict(frozen=True)

    name: str
    state: State
    phase: str
    round: int | None = None
    loss: float | None = None
    tokens: int | None = None
    ready_nodes: int | None = None
    cost: float | None = None
    started_at: float
    ended_at: float | None = None
    workflow_id: str
    run_id: str


def workflow_id(name: str) -> str:
    """The campaign's workflow id; also takes one that is a workflow id already."""
    return f"campaign/{name.removeprefix('campaign/')}"


def spec_hash(spec: CampaignSpec) -> str:
    """Identifies what was asked for: SHA-256 of the whole spec, defaults included, as sorted JSON."""
    return hashlib.sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def first_attributes(spec: CampaignSpec) -> TypedSearchAttributes:
    """Search attributes at the start: the campaign is in every listing at once, even when no worker is there."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword("Campaign"), spec.name),
            SearchAttributePair(SearchAttributeKey.for_keyword("Phase"), Phase.VALIDATING.value),
        ]
    )


def summarize(execution: WorkflowExecution) -> CampaignSummary:
    """The summary of one run."""
    attributes = execution.typed_search_attributes
    state = _STATES.get(execution.status, "running")
    phase = attributes.get(SearchAttributeKey.for_keyword("Phase")) or Phase.VALIDATING.value
    return CampaignSummary(
        name=attributes.get(SearchAttributeKey.for_keyword("Campaign")) or execution.id.removeprefix("campaign/"),
        state=state,
        # The attribute is what the workflow said last; one that was terminated could not say so.
        phase=phase if state == "running" else _LAST_PHASE[state].value,
        round=attributes.get(SearchAttributeKey.for_int("Round")),
        loss=attributes.get(SearchAttributeKey.for_float("Loss")),
        tokens=attributes.get(SearchAttributeKey.for_int("Tokens")),
        ready_nodes=attributes.get(SearchAttributeKey.for_int("ReadyNodes")),
        cost=attributes.get(SearchAttributeKey.for_float("Cost")),
        started_at=execution.start_time.timestamp(),
        ended_at=None if execution.close_time is None else execution.close_time.timestamp(),
        workflow_id=execution.id,
        run_id=execution.run_id,
    )


def status_from(summary: CampaignSummary) -> CampaignStatus:
    """As much of a status as Temporal alone can tell, for a campaign that is over."""
    return CampaignStatus(
        name=summary.name,
        phase=Phase(summary.phase),
        started_at=summary.started_at,
        now=summary.ended_at or 0.0,
        merged_rounds=summary.round,
        loss=summary.loss,
        tokens_total=summary.tokens or 0,
        cost=summary.cost or 0.0,
        failure=_ended_by_temporal(summary),
    )


def as_it_ended(status: CampaignStatus, summary: CampaignSummary) -> CampaignStatus:
    """Correct a status whose workflow could not say that it ended (terminated, timed out)."""
    if summary.state == "running" or status.phase.terminal:
        return status
    return status.model_copy(
        update={
            "phase": _LAST_PHASE[summary.state],
            "failure": status.failure or _ended_by_temporal(summary),
            "waiting_for": "",
        }
    )


def _ended_by_temporal(summary: CampaignSummary) -> str:
    if summary.state in ("terminated", "timed_out"):
        return f"the workflow was {summary.state.replace('_', ' ')} in Temporal: nodes may be left over"
    return ""
