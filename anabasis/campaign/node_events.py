"""How a node's report changes the campaign's state."""

from __future__ import annotations

from anabasis.campaign import events as e
from anabasis.campaign.incidents import amend, open_incident
from anabasis.campaign.ledger import close_life
from anabasis.campaign.messages import NodeEvent
from anabasis.campaign.policy import FailurePolicy, backoff_seconds, policy_for
from anabasis.campaign.state import CampaignState, NodeLife, SlotState
from anabasis.campaign.status import NodeState

_ORDER = {
    NodeState.REQUESTED: 0,
    NodeState.BOOTING: 1,
    NodeState.READY: 2,
    NodeState.UNKNOWN: 2,
    NodeState.DRAINING: 3,
    NodeState.LEAVING: 4,
    NodeState.GONE: 5,
}


def apply_node_event(state: CampaignState, event: NodeEvent, *, at: float) -> None:
    """Reports may be late, repeated or out of order: a life only ever moves forward."""
    life = state.nodes.get(f"{event.slot}-{event.attempt}")
    if life is None or life.nonce != event.nonce:
        return
    if life.paid_from is None and (event.kind == "booting" or event.paid_from is not None):
        life.paid_from = event.paid_from if event.paid_from is not None else event.at
        life.price_per_hour = (
            event.price_per_hour if event.price_per_hour is not None else state.spec.budget.price_per_node_hour
        )
    if event.kind == "booting":
        _move(life, NodeState.BOOTING, at=at)
    elif event.kind in ("ready", "training"):
        _ready(state, life, event, at=at)
    elif event.kind == "unknown":
        _move(life, NodeState.UNKNOWN, at=at, detail=event.detail)
    elif event.kind == "draining":
        _move(life, NodeState.DRAINING, at=at, detail=event.detail)
    elif event.kind == "failed":
        _failed(state, life, event, at=at)
    elif event.kind == "gone":
        _gone(state, life, event)


def _move(life: NodeLife, to: NodeState, *, at: float, detail: str = "") -> bool:
    if _ORDER[to] < _ORDER[life.state] or to is life.state:
        return False
    life.state, life.since = to, at
    life.detail = detail[:200] or life.detail
    if to is NodeState.LEAVING and life.leaving_at is None:
        life.leaving_at = at
    return True


def _ready(state: CampaignState, life: NodeLife, event: NodeEvent, *, at: float) -> None:
    if life.state is NodeState.UNKNOWN:
        life.state = NodeState.READY
    elif not _move(life, NodeState.READY, at=at):
        return
    life.ready_at = life.ready_at if life.ready_at is not None else event.at
    if state.paused and life.paused_from is None:
        life.paused_from = at
    amend(state, slot=life.slot, mended_at=at)


def _failed(state: CampaignState, life: NodeLife, event: NodeEvent, *, at: float) -> None:
    policy = policy_for(event.failure)
    asked_to_leave = bool(life.leave)
    if not _move(life, NodeState.LEAVING, at=at, detail=f"{policy.kind}: {event.detail}"):
        return
    if state.outcome is not None or (asked_to_leave and policy.free):
        return
    decision = _decide(state, life, policy, event, at=at)
    open_incident(
        state,
        kind=policy.kind,
        text=f"node {life.key}: {event.detail}",
        decision=decision,
        slot=life.slot,
        attempt=life.attempt,
        happened_at=event.last_progress_at,
        noticed_at=event.noticed_at or event.at,
        # Where nobody follows, nobody's being ready will close it.
        mended_at=at if state.outcome is not None or life.slot >= state.desired_slots else None,
    )


def _decide(state: CampaignState, life: NodeLife, policy: FailurePolicy, event: NodeEvent, *, at: float) -> str:
    slot = state.slots[life.slot]
    spec = state.spec.failures
    if policy.user_code:
        state.user_code_failures += 1
        if state.user_code_failures > spec.user_code:
            _fail(state, f"the recipe failed {state.user_code_failures} times: {event.detail}")
            return "fail: the recipe's budget is spent"
    if policy.permanent:
        _fail(state, f"{policy.kind}: {event.detail}")
        return "fail: trying again cannot help"
    fresh = life.rounds == 0
    slot.failures_in_a_row = slot.failures_in_a_row + 1 if fresh or policy.provision else 0
    if policy.provision and slot.failures_in_a_row > spec.provision:
        _fail(state, f"slot {life.slot}: {slot.failures_in_a_row} starts failed in a row; last: {event.detail}")
        return "fail: the slot's budget is spent"
    # A machine that was lost before it ever contributed may be lost to the same cause again: back off then.
    repeated = slot.failures_in_a_row - (1 if policy.free else 0)
    wait = backoff_seconds(spec, failures_in_a_row=repeated)
    slot.not_before = at + wait
    return f"replace in {wait:g} s" if wait else "replace now"


def _fail(state: CampaignState, text: str) -> None:
    if state.outcome is None:
        state.outcome, state.failure = "failed", text


def _gone(state: CampaignState, life: NodeLife, event: NodeEvent) -> None:
    if life.leaving_at is None:
        life.leaving_at = event.at
    life.state = NodeState.GONE
    close_life(state.totals, life, now=event.at)
    del state.nodes[life.key]


def refuse_start(state: CampaignState, event: e.NodeStartRefused) -> None:
    """The workflow id is taken: count on, so that the next start uses a fresh one."""
    life = state.nodes.pop(f"{event.slot}-{event.attempt}", None)
    if life is not None:
        state.slots.setdefault(event.slot, SlotState()).not_before = event.at
