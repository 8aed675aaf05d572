"""What crosses Temporal: inputs and results of activities, signals, updates and queries.

Small (references, never parameters), versioned by only ever adding optional fields, free of secrets.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

CAMPAIGN_QUEUE = "campaigns"
"""Task queue of the campaign workflows and of the control activities (no torch)."""

AGGREGATOR_QUEUE = "aggregators"
"""Task queue of the activities that need torch: preflight, prepare, legs, checkpoints, publishing."""


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Message):
    path: str
    text: str


class NodeIdentity(Message):
    """One machine in one slot for one life."""

    campaign: str
    slot: int
    attempt: int
    nonce: str

    @property
    def node_id(self) -> str:
        return f"{self.slot}-{self.attempt}"

    @property
    def task_queue(self) -> str:
        return f"node-{self.campaign}-{self.slot}-{self.attempt}-{self.nonce}"

    @property
    def workflow_id(self) -> str:
        return f"campaign/{self.campaign}/slot-{self.slot}/{self.attempt}"


# --- aggregator queue -------------------------------------------------------------------------------------


class PreflightRequest(Message):
    """Parts of a possibly invalid spec, as far as they are well-formed."""

    recipe: str | None = None
    recipe_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    data_url: str | None = None
    store: str | None = None
    provider: str | None = None


class PreflightReport(Message):
    problems: list[Problem] = Field(default_factory=list[Problem])
    store_url: str = ""


class PrepareRequest(Message):
    """Write spec, data set and version 0 if they are not there yet (idempotent)."""

    spec: dict[str, Any]
    store_url: str


class PrepareResult(Message):
    version: int
    parameters: int
    samples: int
    dataset_tokens: int
    merged_rounds: int = 0
    tokens_total: int = 0
    loss: float | None = None
    checkpoint_version: int | None = None
    roster_generation: int = 0
    journal_sequence: int = 0
    attempts: dict[str, int] = Field(default_factory=dict[str, int])


class LegRequest(Message):
    """Advance from the newest version to `until_version`, unless the roster's target comes first.

    The result's totals cover (from_version, version]; `from_version` is what the workflow has accounted for.
    Ends early with reason `interrupted` when the roster's phase is no longer `training` or on cancellation.
    """

    campaign: str
    store_url: str
    until_version: int
    progress_seconds: float = 5.0
    from_version: int | None = None


class NodeRoundTotals(Message):
    """What the committed rounds of a leg say of one node (seconds by its own monotonic clock)."""

    slot: int
    attempt: int
    rounds: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    sync_seconds: float = 0.0
    wait_seconds: float = 0.0


class AggregatorIncident(Message):
    """Something that the aggregator noticed: a rejected contribution, a checkpoint fallback."""

    kind: Literal["corrupt_contribution", "rejected_contribution", "checkpoint_fallback", "store_unavailable"]
    text: str
    slot: int | None = None
    attempt: int | None = None
    version: int | None = None
    noticed_at: float = 0.0
    mended_at: float | None = None


class LegResult(Message):
    """Where the leg ended.

    Attributes:
        reason: `until` (the leg is full), `target` (campaign's target reached), `diverged`, or `interrupted`.
        from_version: version at the start of *this leg's accounting*: totals cover (from_version, version].
    """

    reason: Literal["until", "target", "diverged", "interrupted"]
    from_version: int
    version: int
    loss: float | None = None
    validation_loss: float | None = None
    tokens_total: int = 0
    merged_rounds: int = 0
    nodes: list[NodeRoundTotals] = Field(default_factory=list[NodeRoundTotals])
    incidents: list[AggregatorIncident] = Field(default_factory=list[AggregatorIncident])
    detail: str = ""


class ProgressReport(Message):
    """Signal `progress` from the aggregator to the campaign, at most every `progress_seconds`.

    `waiting_for` says in words what the round waits for, empty while it advances.
    """

    version: int
    loss: float | None = None
    tokens_total: int = 0
    merged_rounds: int = 0
    contributors: int = 0
    waiting_for: str = ""


class CheckpointRequest(Message):
    campaign: str
    store_url: str
    version: int
    keep: int


class CheckpointResult(Message):
    version: int
    key: str
    bytes_written: int
    seconds: float
    incidents: list[AggregatorIncident] = Field(default_factory=list[AggregatorIncident])


class RollbackRequest(Message):
    """Commit a version that restores the parameters of the newest sound checkpoint at or before `not_after`."""

    campaign: str
    store_url: str
    from_version: int
    not_after: int


class RollbackResult(Message):
    version: int
    restored: int
    incidents: list[AggregatorIncident] = Field(default_factory=list[AggregatorIncident])


class PublishRequest(Message):
    campaign: str
    store_url: str
    version: int


class PublishResult(Message):
    model: str
    number: int
    version: int
    validation_loss: float | None = None


# --- control queue ----------------------------------------------------------------------------------------


class NodeRequest(Message):
    """Ask a provider for a machine. Idempotent by identity."""

    node: NodeIdentity
    provider: str
    provider_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    store_url: str
    heartbeat_seconds: float
    stall_seconds: float
    shutdown_grace_seconds: float = 20.0


class NodeHandle(Message):
    """What the provider calls the machine."""

    provider: str
    reference: str
    price_per_hour: float | None = None


class NodeDescription(Message):
    """A *read* of the provider. `unknown` is never treated as absent."""

    state: Literal["running", "starting", "stopping", "absent", "unknown"]
    detail: str = ""


class NodeCommand(Message):
    """Describe or release: idempotent; absent is success."""

    node: NodeIdentity
    provider: str
    provider_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    grace_seconds: float = 20.0


class WriteRosterRequest(Message):
    store_url: str
    roster: dict[str, Any]


class WriteJournalRequest(Message):
    campaign: str
    store_url: str
    sequence: int
    entries: list[dict[str, Any]]


# --- node queue -------------------------------------------------------------------------------------------


class NodeReport(Message):
    """Answer of the `verify_node` activity: proves that the queue is served, and by what."""

    hostname: str
    agent_pid: int
    cpu_count: int
    memory_bytes: int
    python: str
    platform: str
    clock: float
    devices: list[str] = Field(default_factory=list[str])


class LeaseRequest(Message):
    """Train for the campaign until told otherwise, at most `lease_seconds`.

    The trainer belongs to the agent, not to the attempt: a second lease of the same node adopts the running
    trainer. Heartbeat details: `{"v": version, "s": steps, "p": phase}`.
    """

    node: NodeIdentity
    store_url: str
    lease_seconds: float
    stall_seconds: float


class LeaseResult(Message):
    """Why the lease ended well. Failures are `ApplicationError`s with these types:

    `TrainerFrozen` (no step progress), `TrainerCrashed` (exit by signal or without verdict), `UserCodeError`
    (the recipe raised; message = traceback), `NodeDrained` (SIGTERM: handed back), `StoreDenied`.
    """

    reason: Literal["lease_over", "finished", "drained"]
    version: int = -1
    steps: int = 0
    trainer_pid: int = 0
    trainer_starts: int = 0


# --- operators: updates (each returns a Receipt) ---------------------------------------------------------


class PauseCommand(Message):
    """Update `pause`: finish the round in flight, write a checkpoint, then hold."""

    reason: str = Field(default="", max_length=500)
    release_nodes: bool = False


class ResumeCommand(Message):
    """Update `resume`."""


class ScaleCommand(Message):
    """Update `scale`: wanted slots. Surplus nodes drain after their round."""

    slots: int = Field(ge=1, le=2_000)


class DrainCommand(Message):
    """Update `drain`: let one node finish its round and leave; its slot is filled again."""

    slot: int = Field(ge=0)
    reason: str = Field(default="", max_length=500)


class ExtendCommand(Message):
    """Update `extend`: a new, later target (also for a campaign that has reached its old one)."""

    rounds: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)


class SetBudgetCommand(Message):
    """Update `set_budget`; null = no limit."""

    max_cost: float | None = Field(default=None, gt=0)
    max_node_hours: float | None = Field(default=None, gt=0)


class CheckpointCommand(Message):
    """Update `checkpoint_now`."""


class ApproveCommand(Message):
    """Update `approve`: publish now (only with control.approve_publish)."""


class Receipt(Message):
    """Answer to an update: accepted (validators reject otherwise), in words, with the phase after it."""

    text: str
    phase: str


class NodeEvent(Message):
    """Signal `node_event` from a node workflow to its campaign.

    kind: requested, booting (machine exists), ready (verified), training (first lease began), draining,
    failed (classified; the node is on its way out), gone (a read of the provider says absent). `booting` is told only
    by a node that takes its time; all later reports carry what it would have said (paid_from, price_per_hour).
    """

    slot: int
    attempt: int
    nonce: str
    kind: Literal["requested", "booting", "ready", "training", "draining", "unknown", "failed", "gone"]
    at: float
    failure: str = ""
    detail: str = ""
    noticed_at: float | None = None
    last_progress_at: float | None = None
    price_per_hour: float | None = None
    paid_from: float | None = None
    paid_seconds: float = 0.0
    report: NodeReport | None = None
