"""What can happen to a campaign, and what it can decide.

Events are facts with a time (seconds since the epoch, workflow clock). Decisions are orders to the shell,
which carries them out by activities, child workflows and signals and feeds the outcome back as events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabasis.campaign import messages as m
from anabasis.campaign.records import Roster
from anabasis.campaign.state import JobKind, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported(Event):
    """A node workflow spoke."""

    event: m.NodeEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStartRefused(Event):
    """The node's workflow id is taken by a life of an earlier run that is still being released."""

    slot: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterWritten(Event):
    """The roster activity is over; `ok` is false when it failed (it will be tried again)."""

    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWritten(Event):
    through: int
    ok: bool
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LegEnded(Event):
    job: int
    result: m.LegResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(Event):
    job: int
    result: m.CheckpointResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    job: int
    result: m.RollbackResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    job: int
    result: m.PublishResult


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Event):
    """An aggregator activity gave up. `permanent` failures end the campaign."""

    job: int
    failure: str
    text: str
    permanent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(Event):
    report: m.ProgressReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded(Event):
    """An operator's update, already validated by `reducer.refusal`."""

    command: (
        m.PauseCommand
        | m.ResumeCommand
        | m.ScaleCommand
        | m.DrainCommand
        | m.ExtendCommand
        | m.SetBudgetCommand
        | m.CheckpointCommand
        | m.ApproveCommand
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """Release every node, keep the last checkpoint, end as cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueRequested(Event):
    """History is long: come to rest so that continue-as-new loses nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued(Event):
    """The first event after continue-as-new: nothing is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNode(Decision):
    node: m.NodeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNode(Decision):
    """Tell a node's workflow to leave; polite = after the round in flight."""

    node: m.NodeIdentity
    polite: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRoster(Decision):
    roster: Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJournal(Decision):
    """Write closed incidents; `final` ones carry everything and the ledger."""

    sequence: int
    through: int
    entries: list[dict[str, Any]]
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob(Decision):
    """Start the one aggregator activity. `version`: leg: until; checkpoint, publish: of; rollback: not after."""

    kind: JobKind
    number: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptJob(Decision):
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueAsNew(Decision):
    """Nothing is in flight: now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Decision):
    outcome: Outcome
