"""What the `status` query answers: everything that people and scripts look at. Stable; only ever extended."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Phase(StrEnum):
    """The campaign's states; the three last are terminal."""

    VALIDATING = "validating"
    PROVISIONING = "provisioning"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    PUBLISHING = "publishing"
    RELEASING = "releasing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED)


class NodeState(StrEnum):
    """Of one node life. `unknown` is a state of its own: it never triggers teardown."""

    REQUESTED = "requested"
    BOOTING = "booting"
    READY = "ready"
    DRAINING = "draining"
    LEAVING = "leaving"
    UNKNOWN = "unknown"
    GONE = "gone"


class Bucket(StrEnum):
    """Every paid node-second is in exactly one of these.

    `open` is work of a living node that no commit covers yet: it becomes train, sync or wait when its round
    commits, and lost when the node leaves first.
    """

    BOOT = "boot"
    TRAIN = "train"
    SYNC = "sync"
    WAIT = "wait"
    OPEN = "open"
    LOST = "lost"
    PAUSED = "paused"
    RELEASE = "release"


class Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class NodeStatus(Model):
    slot: int
    attempt: int
    nonce: str
    state: NodeState
    provider: str
    since: float
    rounds: int = 0
    tokens: int = 0
    detail: str = ""


class Incident(Model):
    """One failure: what happened, what was decided, how long it took.

    Attributes (seconds since the epoch, by the workflow's clock unless said otherwise):
        kind: failure class: lost, frozen, trainer_crashed, user_code, preempted, drained, provision_failed,
            capacity, quota, corrupt_contribution, rejected_contribution, checkpoint_fallback, diverged,
            aggregator_failed, store_unavailable.
        happened_at: best estimate (last observed progress); None when unknown.
        noticed_at: when it was known. decided_at: when the decision below was carried out.
        mended_at: when the replacement was ready or the cause was over; None while open.
    """

    sequence: int
    kind: str
    text: str
    decision: str = ""
    slot: int | None = None
    attempt: int | None = None
    happened_at: float | None = None
    noticed_at: float
    decided_at: float | None = None
    mended_at: float | None = None


class CampaignStatus(Model):
    """Answer of the `status` query.

    Attributes:
        version: newest committed version known to the workflow (rounds merged, counting rollbacks).
        merged_rounds: merges so far: what the target counts (versions minus rollbacks).
        waiting_for: in words, why nothing advances; empty while it does.
        ledger: seconds by bucket of all *finished and running* node lives; they sum to paid_node_seconds.
        incidents: the newest (bounded); older ones are in the store's journal.
    """

    name: str
    phase: Phase
    detail: str = ""
    waiting_for: str = ""
    version: int = -1
    target_rounds: int = 0
    target_tokens: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    tokens_total: int = 0
    merged_rounds: int | None = None
    desired_slots: int = 0
    ready_nodes: int = 0
    nodes: list[NodeStatus] = Field(default_factory=list[NodeStatus])
    checkpoint_version: int | None = None
    store_url: str = ""
    started_at: float = 0.0
    now: float = 0.0
    continued: int = 0
    paid_node_seconds: float = 0.0
    cost: float = 0.0
    ledger: dict[Bucket, float] = Field(default_factory=dict[Bucket, float])
    incidents: list[Incident] = Field(default_factory=list[Incident])
    incidents_total: int = 0
    published: dict[str, int] = Field(default_factory=dict[str, int])
    failure: str = ""


class CampaignResult(Model):
    """What the workflow returns when it completes (failures raise with the same facts in words)."""

    name: str
    version: int
    loss: float | None
    validation_loss: float | None
    tokens_total: int
    model: str | None
    model_number: int | None
    checkpoint_version: int | None
    paid_node_seconds: float
    cost: float
    ledger: dict[Bucket, float]
    incidents_total: int
    store_url: str
