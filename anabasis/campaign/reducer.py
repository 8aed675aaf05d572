"""The campaign as a state machine: `step(state, event) -> decisions`.

Pure: no I/O, no clock, no randomness of its own. `step` first applies the event to the state, then asks
`planner.decide` what to do about the state as it now is (level-triggered: a lost decision is made again).
"""

from __future__ import annotations

from anabasis.campaign import events as e
from anabasis.campaign import messages as m
from anabasis.campaign.incidents import amend, from_aggregator, open_incident
from anabasis.campaign.node_events import apply_node_event, refuse_start
from anabasis.campaign.planner import decide
from anabasis.campaign.policy import retry_seconds
from anabasis.campaign.state import CampaignState, SlotState

MAX_JOB_FAILURES = 10
"""Consecutive failures of the aggregator without progress (each already retried by Temporal) before giving up."""

MAX_JOURNAL_FAILURES = 3
"""The last journal write is tried so often (each retried by Temporal); then the campaign ends without it."""


def step(state: CampaignState, event: e.Event) -> list[e.Decision]:
    """Apply one event (in place) and return what to do now, in order."""
    apply(state, event)
    return decide(state, now=event.at)


def apply(state: CampaignState, event: e.Event) -> None:
    """Change the state by one fact. Facts about things that are over are ignored."""
    if state.phase.terminal:
        return
    match event:
        case e.NodeReported():
            apply_node_event(state, event.event, at=event.at)
        case e.NodeStartRefused():
            refuse_start(state, event)
        case e.RosterWritten():
            _roster_written(state, event)
        case e.JournalWritten():
            _journal_written(state, event)
        case e.LegEnded() | e.CheckpointWritten() | e.RolledBack() | e.Published() | e.JobFailed():
            _job_ended(state, event)
        case e.Progressed():
            _progressed(state, event.report)
        case e.Commanded():
            _commanded(state, event.command, at=event.at)
        case e.CancelRequested():
            if state.outcome is None:
                state.outcome = "cancelled"
        case e.ContinueRequested():
            state.continue_requested = True
        case e.Continued():
            state.continue_requested = False
            state.job, state.roster_in_flight, state.journal_in_flight = None, False, False
        case _:
            pass


def fail(state: CampaignState, text: str) -> None:
    """End the campaign as failed, unless it is ending already."""
    if state.outcome is None:
        state.outcome = "failed"
        state.failure = text


def _roster_written(state: CampaignState, event: e.RosterWritten) -> None:
    state.roster_in_flight = False
    if event.ok:
        state.roster_failures = 0
    else:
        state.roster_failures += 1
        state.roster_not_before = event.at + retry_seconds(failures_in_a_row=state.roster_failures)
        state.roster = None if state.roster is None else state.roster.model_copy(update={"slots": [-1]})


def _journal_written(state: CampaignState, event: e.JournalWritten) -> None:
    state.journal_in_flight = False
    if not event.ok:
        state.journal_failures += 1
        state.journal_not_before = event.at + retry_seconds(failures_in_a_row=state.journal_failures)
        state.final_journal_done = event.final and state.journal_failures >= MAX_JOURNAL_FAILURES
        return
    state.journal_failures = 0
    state.journal_due = False
    state.journaled_through = max(state.journaled_through, event.through)
    state.journal_sequence += 1
    state.final_journal_done = event.final


def _job_ended(
    state: CampaignState, event: e.LegEnded | e.CheckpointWritten | e.RolledBack | e.Published | e.JobFailed
) -> None:
    if state.job is None or state.job.number != event.job:
        return
    interrupted = state.job.interrupted
    state.job = None
    if isinstance(event, e.JobFailed):
        _job_failed(state, event, interrupted=interrupted)
        return
    if state.job_failures:
        amend(state, slot=None, kinds={"aggregator_failed"}, mended_at=event.at)
    state.job_failures = 0
    if isinstance(event, e.LegEnded):
        _leg_ended(state, event)
    elif isinstance(event, e.CheckpointWritten):
        state.checkpoint_version = max(event.result.version, state.checkpoint_version or 0)
        state.checkpoint_requested = False
        state.journal_due = True
        state.final_checkpoint_done = state.outcome is not None
        from_aggregator(state, event.result.incidents, at=event.at)
    elif isinstance(event, e.RolledBack):
        state.version = state.accounted_version = event.result.version
        state.rollback_needed = ""
        from_aggregator(state, event.result.incidents, at=event.at)
        amend(
            state,
            slot=None,
            kinds={"diverged"},
            mended_at=event.at,
            decision=f"rolled back to v{event.result.restored}",
        )
    else:
        state.published_model = event.result.model
        state.published_number = event.result.number
        state.published_version = event.result.version
        state.validation_loss = event.result.validation_loss or state.validation_loss


def _job_failed(state: CampaignState, event: e.JobFailed, *, interrupted: bool) -> None:
    if state.outcome is not None:
        state.final_checkpoint_done = True  # one try is enough on the way out: the last checkpoint is kept
    if interrupted:
        return
    if event.permanent:
        fail(state, event.text)
        return
    state.job_failures += 1
    wait = retry_seconds(failures_in_a_row=state.job_failures)
    state.job_not_before = event.at + wait
    open_incident(
        state,
        kind="aggregator_failed",
        text=event.text,
        noticed_at=event.at,
        decided_at=event.at,
        decision=f"try again in {wait:g} s",
    )
    if state.job_failures >= MAX_JOB_FAILURES:
        fail(state, f"the aggregator failed {state.job_failures} times without progress; last: {event.text}")


def _leg_ended(state: CampaignState, event: e.LegEnded) -> None:
    result = event.result
    state.version = max(state.version, result.version)
    state.accounted_version = max(state.accounted_version, result.version)
    state.merged_rounds = max(state.merged_rounds, result.merged_rounds)
    state.tokens_total = max(state.tokens_total, result.tokens_total)
    state.loss = result.loss if result.loss is not None else state.loss
    state.validation_loss = result.validation_loss if result.validation_loss is not None else state.validation_loss
    state.waiting_for = ""
    for totals in result.nodes:
        life = state.nodes.get(f"{totals.slot}-{totals.attempt}")
        if life is not None:
            life.rounds += totals.rounds
            life.tokens += totals.tokens
            life.train_seconds += totals.train_seconds
            life.sync_seconds += totals.sync_seconds
            life.wait_seconds += totals.wait_seconds
            if totals.rounds and totals.slot in state.slots:
                state.slots[totals.slot].failures_in_a_row = 0
    from_aggregator(state, result.incidents, at=event.at)
    if result.reason == "diverged":
        _diverged(state, result, at=event.at)


def _diverged(state: CampaignState, result: m.LegResult, *, at: float) -> None:
    state.divergences += 1
    budget = state.spec.failures.diverged
    last = state.divergences > budget
    open_incident(
        state,
        kind="diverged",
        text=result.detail or "the loss diverged",
        noticed_at=at,
        decided_at=at,
        decision="fail" if last else "",
    )
    if last:
        fail(state, f"diverged {state.divergences} times (failures.diverged = {budget}): {result.detail}")
    else:
        state.rollback_needed = result.detail or "the loss diverged"


def _progressed(state: CampaignState, report: m.ProgressReport) -> None:
    if report.version < state.version:
        return
    state.version = report.version
    state.merged_rounds = max(state.merged_rounds, report.merged_rounds)
    state.tokens_total = max(state.tokens_total, report.tokens_total)
    state.loss = report.loss if report.loss is not None else state.loss
    state.waiting_for = report.waiting_for[:300]


def refusal(state: CampaignState, command: m.Message) -> str | None:
    """Why a command cannot be taken now, in one line with the mend; None when it can."""
    if state.outcome is not None or state.phase.terminal:
        return f"the campaign is {state.phase.value} and takes no more commands"
    match command:
        case m.PauseCommand() if state.paused:
            return "the campaign is paused already; use resume"
        case m.ResumeCommand() if not state.paused:
            return "the campaign is not paused"
        case m.ScaleCommand() if command.slots > state.spec.data.partitions:
            return (
                f"slots: {command.slots} exceeds data.partitions = {state.spec.data.partitions}; "
                "each slot needs a partition of its own"
            )
        case m.ScaleCommand() if command.slots < state.spec.rounds.min_contributors:
            return (
                f"slots: {command.slots} is below rounds.min_contributors = {state.spec.rounds.min_contributors}; "
                "no round could close"
            )
        case m.DrainCommand() if state.sitting_in(command.slot) is None:
            taken = sorted(life.slot for life in state.nodes.values() if life.present)
            return f"slot: {command.slot} has no node now; slots with nodes: {taken}"
        case m.ExtendCommand() if command.rounds is None and command.tokens is None:
            return "rounds or tokens: say at least one new target"
        case m.ExtendCommand() if command.rounds is not None and command.rounds <= state.merged_rounds:
            return f"rounds: {command.rounds} is not beyond the {state.merged_rounds} that are done"
        case m.ExtendCommand() if command.tokens is not None and command.tokens <= state.tokens_total:
            return f"tokens: {command.tokens} is not beyond the {state.tokens_total} that are done"
        case m.ApproveCommand() if not state.spec.control.approve_publish:
            return "nothing waits for approval: control.approve_publish is off"
        case _:
            return None


def _commanded(state: CampaignState, command: m.Message, *, at: float) -> None:
    match command:
        case m.PauseCommand():
            state.paused, state.pause_reason = True, command.reason
            state.release_on_pause = command.release_nodes
            state.checkpoint_requested = True
            for life in state.nodes.values():
                # A machine that boots goes on booting; its pause begins when it is ready.
                life.paused_from = at if life.ready_at is not None else None
        case m.ResumeCommand():
            state.paused, state.release_on_pause, state.pause_reason = False, False, ""
            for life in state.nodes.values():
                if life.paused_from is not None:
                    life.paused_seconds += at - life.paused_from
                    life.paused_from = None
        case m.ScaleCommand():
            state.desired_slots = command.slots
            for number in state.slots:
                if number >= command.slots:  # nobody will be ready there: what is open would hold up the journal
                    amend(state, slot=number, decided_at=at, mended_at=at)
        case m.DrainCommand():
            life = state.sitting_in(command.slot)
            if life is not None:
                life.detail = command.reason or "drained by an operator"
                life.leave = life.leave or "polite"
        case m.ExtendCommand():
            state.target_rounds = command.rounds or state.target_rounds
            state.target_tokens = command.tokens or state.target_tokens
            if command.tokens is not None and command.rounds is None:
                state.target_rounds = max(state.target_rounds, state.merged_rounds + 1)
            state.published_version = None
            state.approved = False
        case m.SetBudgetCommand():
            state.max_cost, state.max_node_hours = command.max_cost, command.max_node_hours
            state.budget_warned = False
        case m.CheckpointCommand():
            state.checkpoint_requested = True
        case m.ApproveCommand():
            state.approved = True
        case _:
            pass


def resume_from_store(state: CampaignState, prepared: m.PrepareResult) -> None:
    """Take over what the store says: a later run of a campaign goes on where the last one committed."""
    state.version = state.accounted_version = prepared.version
    state.merged_rounds = prepared.merged_rounds
    state.tokens_total = prepared.tokens_total
    state.loss = prepared.loss
    state.checkpoint_version = prepared.checkpoint_version
    state.journal_sequence = prepared.journal_sequence
    for slot, attempt in prepared.attempts.items():
        state.slots.setdefault(int(slot), SlotState()).attempt = attempt
    if prepared.roster_generation:
        stale = state.wanted_roster()
        state.roster = stale.model_copy(update={"generation": prepared.roster_generation, "slots": [-1]})
