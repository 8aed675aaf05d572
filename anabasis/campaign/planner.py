"""What to do about the state as it is now. Level-triggered: decisions follow from state, not from the event."""

from __future__ import annotations

from typing import Any

from anabasis.campaign import events as e
from anabasis.campaign.incidents import FLUSH_AT, amend, closed_since_journal, open_incident
from anabasis.campaign.ledger import budget_exhausted_at, campaign_ledger
from anabasis.campaign.records import Roster
from anabasis.campaign.state import CampaignState, Job, JobKind, NodeLife, SlotState
from anabasis.campaign.status import NodeState, Phase

RELEASE_SECONDS = 600.0
"""A closing campaign waits so long for its nodes to be gone; after that their own workflows go on releasing."""

BUDGET_WARNING = 0.8

ROSTER_TRIES = 3
"""Failures in a row (each retried by Temporal) after which a closing campaign ends without the roster that says so;
its nodes are told by signal anyway."""

FINISH_SECONDS = 15.0
"""Nodes that train read of the end in the roster within a second or two and leave by themselves; who has not left by
then is told. It saves two events of history for each node of a fleet."""


def decide(state: CampaignState, *, now: float) -> list[e.Decision]:
    """Decisions in the order in which they are to be carried out; marks what is in flight in the state."""
    if state.phase.terminal:
        return []
    decisions: list[e.Decision] = []
    _check_budget(state, now=now)
    _check_completion(state)
    if state.outcome is not None:
        state.continue_requested = (
            False  # the end is near: what is left to do must not wait for a rest that never comes
        )
    _mark_leavers(state)
    decisions += _stops(state, now=now)
    decisions += _starts(state, now=now)
    decisions += _roster(state, now=now)
    decisions += _job(state, now=now)
    decisions += _journal(state, now=now)
    state.phase = _phase(state)
    decisions += _end(state, now=now)
    return decisions


def wake_at(state: CampaignState, *, now: float) -> float | None:
    """When time alone will call for a decision; None when only events can."""
    times: list[float] = []
    if state.phase.terminal:
        return None
    times += [life.stop_at for life in state.nodes.values() if life.stop_at is not None]
    patience = [state.roster_not_before, state.journal_not_before]
    if state.outcome is not None:
        # What is past calls for nothing: a timer for it would go off again and again while a last job runs.
        times += [at for at in (*patience, state.released_by or 0.0) if at > now]
        return min(times, default=None)
    times += [at for at in patience if at > now]
    if state.wants_nodes and not state.continue_requested:
        for number in range(state.desired_slots):
            if state.sitting_in(number) is None:
                slot = state.slots.get(number)
                ramp = now + 1.0 / state.spec.fleet.start_rate_per_second
                times.append(max(slot.not_before if slot else 0.0, min(ramp, now + 1.0)))
    if state.job is None and state.job_not_before > now:
        times.append(state.job_not_before)
    exhausted, share = budget_exhausted_at(state, now=now)
    if exhausted is not None and share < 1:
        times.append(exhausted)
    return min(times) if times else None


def _check_budget(state: CampaignState, *, now: float) -> None:
    if state.outcome is not None:
        return
    _, share = budget_exhausted_at(state, now=now)
    if share >= 1:
        paid, cost, _ = campaign_ledger(state, now=now)
        state.outcome = "failed"
        state.failure = (
            f"budget exhausted: {cost:.2f} spent in {paid / 3_600:.2f} node-hours "
            f"(budget.max_cost = {state.max_cost}, budget.max_node_hours = {state.max_node_hours}); "
            "raise it and start the campaign again: it resumes from its checkpoint"
        )
    elif share >= BUDGET_WARNING and not state.budget_warned:
        state.budget_warned = True
        open_incident(
            state,
            kind="budget_warning",
            text=f"{share:.0%} of the budget is spent",
            noticed_at=now,
            decided_at=now,
            mended_at=now,
            decision="go on; stop at 100 %",
        )


def _check_completion(state: CampaignState) -> None:
    if state.outcome is None and state.target_reached and state.published_version == state.version:
        state.outcome = "completed"


def _mark_leavers(state: CampaignState) -> None:
    for life in state.nodes.values():
        if not state.wants_nodes:
            life.leave = "now"
        elif life.slot >= state.desired_slots and not life.leave:
            life.leave = "polite"
            life.detail = life.detail or "scaled down"


def _stops(state: CampaignState, *, now: float) -> list[e.Decision]:
    stops: list[e.Decision] = []
    quiet = state.quiet_finish and state.target_reached and state.outcome in (None, "completed")
    for life in state.nodes.values():
        if life.stop_at is not None and (now >= life.stop_at or not quiet):
            life.stop_at = None
            stops.append(e.StopNode(node=state.identity(life), polite=False, reason="campaign is ending"))
        if not life.leave or life.stop_sent in (life.leave, "now") or life.state is NodeState.LEAVING:
            continue
        life.stop_sent = life.leave
        in_roster = life.state in (NodeState.READY, NodeState.UNKNOWN)
        polite = life.leave == "polite" and in_roster
        life.state, life.since = (NodeState.DRAINING, now) if polite else (NodeState.LEAVING, now)
        if not polite:
            life.leaving_at = now
        if quiet and in_roster:
            life.stop_at = now + FINISH_SECONDS
            continue
        stops.append(e.StopNode(node=state.identity(life), polite=polite, reason=life.detail or "campaign is ending"))
    return stops


def _starts(state: CampaignState, *, now: float) -> list[e.Decision]:
    rate = state.spec.fleet.start_rate_per_second
    elapsed = max(0.0, now - state.start_allowance_at)
    state.start_allowance = min(max(1.0, rate), state.start_allowance + elapsed * rate)
    state.start_allowance_at = now
    starts: list[e.Decision] = []
    if not state.wants_nodes or state.continue_requested:
        return starts
    taken = {life.slot for life in state.nodes.values() if life.present}
    for number in range(state.desired_slots):
        if state.start_allowance < 1.0:
            break
        slot = state.slots.setdefault(number, SlotState())
        if number in taken or slot.not_before > now:
            continue
        state.start_allowance -= 1.0
        slot.attempt += 1
        life = NodeLife(
            slot=number,
            attempt=slot.attempt,
            nonce=state.nonce_for(number, slot.attempt),
            since=now,
            requested_at=now,
        )
        state.nodes[life.key] = life
        amend(state, slot=number, decided_at=now)
        starts.append(e.StartNode(node=state.identity(life)))
    return starts


def _roster(state: CampaignState, *, now: float) -> list[e.Decision]:
    if state.roster_in_flight or now < state.roster_not_before or not _roster_is_due(state):
        return []
    wanted = state.wanted_roster()
    state.roster = wanted.model_copy(update={"generation": wanted.generation + 1})
    state.roster_in_flight = True
    return [e.WriteRoster(roster=state.roster)]


def _roster_is_due(state: CampaignState) -> bool:
    if state.outcome is not None and state.roster_failures >= ROSTER_TRIES:
        return False
    return state.roster is None or not _same_orders(state.wanted_roster(), state.roster)


def _same_orders(wanted: Roster, sent: Roster) -> bool:
    """Attempts alone are no reason to write: they ride along with the next change of membership."""
    ignored = {"attempts", "generation"}
    return wanted.model_dump(exclude=ignored) == sent.model_dump(exclude=ignored)


def _job(state: CampaignState, *, now: float) -> list[e.Decision]:
    if state.job is not None:
        if state.job.kind == "leg" and not state.job.interrupted and _leg_is_unwanted(state):
            state.job.interrupted = True
            return [e.InterruptJob(number=state.job.number)]
        return []
    if state.continue_requested or (state.job_not_before > now and state.outcome is None):
        return []
    chosen = _next_job(state)
    if chosen is None:
        return []
    kind, version = chosen
    state.job_number += 1
    state.job = Job(kind=kind, number=state.job_number, version=version)
    return [e.StartJob(kind=kind, number=state.job_number, version=version)]


def _leg_is_unwanted(state: CampaignState) -> bool:
    return state.outcome is not None or state.paused or state.checkpoint_requested or state.continue_requested


def _next_job(state: CampaignState) -> tuple[JobKind, int] | None:
    stale = state.version > (state.checkpoint_version if state.checkpoint_version is not None else -1)
    every = state.spec.checkpoint.every_rounds
    if state.outcome == "completed":
        return None
    if state.outcome is not None:
        return ("checkpoint", state.version) if stale and not state.final_checkpoint_done else None
    if state.rollback_needed:
        return ("rollback", state.version)
    due = state.version - (state.checkpoint_version or 0) >= every
    if stale and (state.checkpoint_requested or due or state.target_reached):
        return ("checkpoint", state.version)
    state.checkpoint_requested = False
    if state.target_reached:
        ready = state.approved or not state.spec.control.approve_publish
        return ("publish", state.version) if ready else None
    if state.paused:
        return None
    if not state.had_quorum and state.ready_nodes < state.quorum_nodes:
        return None
    state.had_quorum = True
    return ("leg", (state.checkpoint_version or 0) + every)


def _journal(state: CampaignState, *, now: float) -> list[e.Decision]:
    if state.journal_in_flight or state.continue_requested or now < state.journal_not_before:
        return []
    if state.outcome is not None:
        return _final_journal(state, now=now) if _at_rest(state, now=now) and not state.final_journal_done else []
    stretch = closed_since_journal(state)
    if not stretch or (len(stretch) < FLUSH_AT and not state.journal_due):
        return []
    state.journal_in_flight = True
    entries = [incident.model_dump(mode="json") for incident in stretch]
    return [e.WriteJournal(sequence=state.journal_sequence, through=stretch[-1].sequence, entries=entries)]


def _final_journal(state: CampaignState, *, now: float) -> list[e.Decision]:
    paid, cost, buckets = campaign_ledger(state, now=now)
    entries: list[dict[str, Any]] = [
        incident.model_dump(mode="json") for incident in state.incidents if incident.sequence > state.journaled_through
    ]
    entries.append(
        {
            "kind": "ledger",
            "paid_node_seconds": paid,
            "cost": cost,
            "ledger": {bucket.value: seconds for bucket, seconds in buckets.items()},
            "outcome": state.outcome,
            "failure": state.failure[:600],
            "at": now,
        }
    )
    state.journal_in_flight = True
    return [
        e.WriteJournal(sequence=state.journal_sequence, through=state.incident_sequence, entries=entries, final=True)
    ]


def _at_rest(state: CampaignState, *, now: float) -> bool:
    """Everything is released (or has had its time) and the last checkpoint is taken or was tried."""
    if state.released_by is None:
        state.released_by = now + RELEASE_SECONDS
    released = not state.nodes or now >= state.released_by
    return released and state.job is None and not state.roster_in_flight and not _roster_is_due(state)


def _phase(state: CampaignState) -> Phase:
    if state.outcome is not None:
        return Phase.RELEASING
    kind = state.job.kind if state.job else None
    if state.rollback_needed:
        return Phase.ROLLING_BACK
    if kind == "publish" or (kind is None and state.target_reached):
        return Phase.PUBLISHING
    if kind == "checkpoint":
        return Phase.CHECKPOINTING
    if state.paused:
        return Phase.PAUSED
    return Phase.TRAINING if state.had_quorum else Phase.PROVISIONING


def _end(state: CampaignState, *, now: float) -> list[e.Decision]:
    if state.outcome is not None and state.final_journal_done and not state.journal_in_flight:
        if not _at_rest(state, now=now):
            return []
        state.phase = Phase(state.outcome)
        return [e.Finish(outcome=state.outcome)]
    at_rest = state.job is None and not state.roster_in_flight and not state.journal_in_flight
    if state.continue_requested and at_rest and state.outcome is None:
        return [e.ContinueAsNew()]
    return []


def describe_node(life: NodeLife) -> str:
    """One line for people."""
    return f"{life.key} {life.state.value}" + (f": {life.detail}" if life.detail else "")
