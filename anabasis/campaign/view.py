"""The state as people see it."""

from __future__ import annotations

from anabasis.campaign.ledger import campaign_ledger
from anabasis.campaign.state import CampaignState
from anabasis.campaign.status import CampaignResult, CampaignStatus, NodeStatus

SHOWN_INCIDENTS = 100
"""A query's answer stays far below the 2 MB of a payload; older incidents are in the journal."""


def status_of(state: CampaignState, *, now: float) -> CampaignStatus:
    """Answer of the `status` query."""
    paid, cost, buckets = campaign_ledger(state, now=now)
    nodes = [
        NodeStatus(
            slot=life.slot,
            attempt=life.attempt,
            nonce=life.nonce,
            state=life.state,
            provider=state.spec.fleet.provider,
            since=life.since,
            rounds=life.rounds,
            tokens=life.tokens,
            detail=life.detail,
        )
        for life in sorted(state.nodes.values(), key=lambda life: (life.slot, life.attempt))
    ]
    return CampaignStatus(
        name=state.name,
        phase=state.phase,
        detail=state.pause_reason if state.paused else state.rollback_needed,
        waiting_for=_waiting_for(state),
        version=state.version,
        merged_rounds=state.merged_rounds,
        target_rounds=state.target_rounds,
        target_tokens=state.target_tokens,
        loss=state.loss,
        validation_loss=state.validation_loss,
        tokens_total=state.tokens_total,
        desired_slots=state.desired_slots,
        ready_nodes=state.ready_nodes,
        nodes=nodes,
        checkpoint_version=state.checkpoint_version,
        store_url=state.store_url,
        started_at=state.started_at,
        now=now,
        continued=state.continued,
        paid_node_seconds=paid,
        cost=cost,
        ledger=buckets,
        incidents=state.incidents[-SHOWN_INCIDENTS:],
        incidents_total=state.incident_sequence,
        published={state.published_model: state.published_number}
        if state.published_model is not None and state.published_number is not None
        else {},
        failure=state.failure,
    )


def _waiting_for(state: CampaignState) -> str:
    if state.waiting_for:
        return state.waiting_for
    if state.outcome is not None and state.nodes:
        return f"{len(state.nodes)} nodes to be gone"
    if state.target_reached and state.spec.control.approve_publish and not state.approved:
        return "approval (update approve)"
    if not state.had_quorum and not state.paused:
        return f"nodes: {state.ready_nodes} ready of {state.quorum_nodes} needed"
    return ""


def result_of(state: CampaignState, *, now: float) -> CampaignResult:
    """What a completed campaign returns."""
    paid, cost, buckets = campaign_ledger(state, now=now)
    return CampaignResult(
        name=state.name,
        version=state.version,
        loss=state.loss,
        validation_loss=state.validation_loss,
        tokens_total=state.tokens_total,
        model=state.published_model,
        model_number=state.published_number,
        checkpoint_version=state.checkpoint_version,
        paid_node_seconds=paid,
        cost=cost,
        ledger=buckets,
        incidents_total=state.incident_sequence,
        store_url=state.store_url,
    )
