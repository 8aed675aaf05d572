"""The campaign's state: plain data that survives continue-as-new.

Changed only by `anabasis.campaign.reducer.step`. Times are seconds since the epoch by the workflow's clock,
the one clock of the ledger.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from anabasis.campaign.messages import NodeIdentity
from anabasis.campaign.records import Roster, RosterMember
from anabasis.campaign.spec import CampaignSpec
from anabasis.campaign.status import Bucket, Incident, NodeState, Phase

SCHEMA_VERSION = 1

Outcome = Literal["completed", "failed", "cancelled"]
JobKind = Literal["leg", "checkpoint", "rollback", "publish"]


class Mutable(BaseModel):
    model_config = ConfigDict(extra="ignore")


class NodeLife(Mutable):
    """One machine in one slot. Seconds are what committed rounds say of it."""

    slot: int
    attempt: int
    nonce: str
    state: NodeState = NodeState.REQUESTED
    since: float
    requested_at: float
    paid_from: float | None = None
    ready_at: float | None = None
    leaving_at: float | None = None
    paused_from: float | None = None
    paused_seconds: float = 0.0
    price_per_hour: float = 0.0
    rounds: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    sync_seconds: float = 0.0
    wait_seconds: float = 0.0
    detail: str = ""
    leave: Literal["", "polite", "now"] = ""
    stop_sent: Literal["", "polite", "now"] = ""
    stop_at: float | None = None

    @property
    def key(self) -> str:
        return f"{self.slot}-{self.attempt}"

    @property
    def present(self) -> bool:
        """Still sits in its slot: no replacement may start."""
        return self.state not in (NodeState.LEAVING, NodeState.GONE)


class SlotState(Mutable):
    """A seat: it outlives its machines."""

    attempt: int = 0
    failures_in_a_row: int = 0
    not_before: float = 0.0


class Job(Mutable):
    """The one aggregator activity in flight. At most one at a time, so that nothing races a commit."""

    kind: JobKind
    number: int
    version: int
    interrupted: bool = False


class Totals(Mutable):
    """Of node lives that are over."""

    paid_seconds: float = 0.0
    cost: float = 0.0
    buckets: dict[Bucket, float] = Field(default_factory=dict[Bucket, float])
    tokens_by_slot: dict[int, int] = Field(default_factory=dict[int, int])


class CampaignState(Mutable):
    """Everything that the campaign workflow knows."""

    schema_version: int = SCHEMA_VERSION
    spec: CampaignSpec
    seed: str
    phase: Phase = Phase.PROVISIONING
    detail: str = ""
    store_url: str
    started_at: float
    continued: int = 0

    version: int = 0
    accounted_version: int = 0
    merged_rounds: int = 0
    tokens_total: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    waiting_for: str = ""
    checkpoint_version: int | None = None

    desired_slots: int
    target_rounds: int
    target_tokens: int | None = None
    target_loss: float | None = None
    max_cost: float | None = None
    max_node_hours: float | None = None
    budget_warned: bool = False

    slots: dict[int, SlotState] = Field(default_factory=dict[int, SlotState])
    nodes: dict[str, NodeLife] = Field(default_factory=dict[str, NodeLife])
    totals: Totals = Field(default_factory=Totals)
    quiet_finish: bool = False
    start_allowance: float = 0.0
    start_allowance_at: float = 0.0

    roster: Roster | None = None
    roster_in_flight: bool = False
    roster_failures: int = 0
    roster_not_before: float = 0.0

    job: Job | None = None
    job_number: int = 0
    job_failures: int = 0
    job_not_before: float = 0.0
    had_quorum: bool = False
    rollback_needed: str = ""
    checkpoint_requested: bool = False
    final_checkpoint_done: bool = False

    paused: bool = False
    pause_reason: str = ""
    release_on_pause: bool = False
    approved: bool = False

    outcome: Outcome | None = None
    failure: str = ""
    released_by: float | None = None
    published_model: str | None = None
    published_number: int | None = None
    published_version: int | None = None

    user_code_failures: int = 0
    divergences: int = 0

    incidents: list[Incident] = Field(default_factory=list[Incident])
    incident_sequence: int = 0
    journal_sequence: int = 0
    journal_in_flight: bool = False
    journal_due: bool = False
    journal_failures: int = 0
    journal_not_before: float = 0.0
    journaled_through: int = 0
    final_journal_done: bool = False

    continue_requested: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def target_reached(self) -> bool:
        return (
            self.merged_rounds >= self.target_rounds
            or (self.target_tokens is not None and self.tokens_total >= self.target_tokens)
            or (self.target_loss is not None and self.loss is not None and self.loss <= self.target_loss)
        )

    @property
    def wants_nodes(self) -> bool:
        """Machines are paid for only while there is work for them."""
        return self.outcome is None and not self.target_reached and not (self.paused and self.release_on_pause)

    @property
    def ready_nodes(self) -> int:
        return sum(life.state is NodeState.READY for life in self.nodes.values())

    @property
    def quorum_nodes(self) -> int:
        """Nodes without which no round can close."""
        if self.spec.training.deterministic:
            return self.desired_slots
        return max(self.spec.rounds.min_contributors, math.ceil(self.spec.rounds.quorum * self.desired_slots))

    def sitting_in(self, slot: int) -> NodeLife | None:
        """The node that occupies a slot now, if any."""
        for life in self.nodes.values():
            if life.slot == slot and life.present:
                return life
        return None

    def identity(self, life: NodeLife) -> NodeIdentity:
        return NodeIdentity(campaign=self.name, slot=life.slot, attempt=life.attempt, nonce=life.nonce)

    def nonce_for(self, slot: int, attempt: int) -> str:
        """Unique per machine life; derived, so that replay and continue-as-new agree on it."""
        return hashlib.sha256(f"{self.seed}/{slot}/{attempt}".encode()).hexdigest()[:12]

    def wanted_roster(self) -> Roster:
        """The roster that the state asks for, numbered as the last one sent."""
        members = [
            RosterMember(slot=life.slot, attempt=life.attempt, nonce=life.nonce)
            for life in sorted(self.nodes.values(), key=lambda life: (life.slot, life.attempt))
            if life.state in (NodeState.READY, NodeState.UNKNOWN, NodeState.DRAINING)
        ]
        phase: Literal["training", "paused", "finished"] = "paused" if self.paused else "training"
        if self.outcome is not None or self.target_reached:
            phase = "finished"
        return Roster(
            campaign=self.name,
            generation=self.roster.generation if self.roster else 0,
            phase=phase,
            slots=list(range(self.desired_slots)),
            members=members,
            attempts={str(number): slot.attempt for number, slot in sorted(self.slots.items())},
            target_rounds=self.target_rounds,
            target_tokens=self.target_tokens,
            target_loss=self.target_loss,
        )
