"""What a report says, as data. `Report.model_dump_json()` is the stable form for scripts: fields are only ever added.

Times `*_at` are seconds since the epoch, durations are seconds. A number that is not known is null, never zero.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from anabasis.campaign.records import Rejection
from anabasis.campaign.status import Incident


class ReportPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Setup(ReportPart):
    """What the campaign was asked to do, from its stored spec."""

    recipe: str
    data_url: str
    slots: int
    provider: str
    target_rounds: int
    target_tokens: int | None = None
    target_loss: float | None = None
    sequence_length: int
    seed: int
    deterministic: bool
    compression: str


class CurvePoint(ReportPart):
    """One committed version.

    Attributes:
        loss: token-weighted mean training loss of the round that made this version; null for version 0, rollbacks,
            and where it is not finite.
        validation_loss: measured *on* this version (by a node of the following round, or when it was published).
        tokens_total: committed training tokens up to here.
        fingerprint: of the parameters; equal fingerprints mean equal bits.
        seconds: from the opening of the round to its commit; null when the manifest does not say.
    """

    version: int
    kind: Literal["initial", "merge", "rollback"]
    merged_rounds: int
    loss: float | None = None
    validation_loss: float | None = None
    tokens_total: int = 0
    contributors: int = 0
    at: float = 0.0
    seconds: float | None = None
    merge_seconds: float = 0.0
    fingerprint: str = ""


class RolledBack(ReportPart):
    """A version that restores an older checkpoint: `discarded` versions' updates are undone by it."""

    version: int
    restored: int
    discarded: int
    at: float


class RoundMembers(ReportPart):
    """Who took part in the round that made `version`; node names are `<slot>-<attempt>`."""

    version: int
    contributors: list[str]
    missing_slots: list[int] = Field(default_factory=list)
    rejected: list[str] = Field(default_factory=list)
    close_reason: str = ""


class NodeContribution(ReportPart):
    """What the commits say of one node life.

    Attributes:
        share: of all committed tokens, 0 to 1.
        train_seconds, sync_seconds, wait_seconds: by the node's own monotonic clock, of committed rounds only.
        uploaded_bytes: of the contributions that were merged.
        state: from the campaign's status, empty when it is not known.
    """

    slot: int
    attempt: int
    nonce: str = ""
    rounds: int = 0
    tokens: int = 0
    share: float = 0.0
    train_seconds: float = 0.0
    sync_seconds: float = 0.0
    wait_seconds: float = 0.0
    uploaded_bytes: int = 0
    rejections: int = 0
    first_version: int | None = None
    last_version: int | None = None
    state: str = ""

    @property
    def name(self) -> str:
        return f"{self.slot}-{self.attempt}"


class RejectedContribution(Rejection):
    """A contribution that the round of `version` left out."""

    version: int


class ReportedIncident(Incident):
    """An incident with its durations.

    Attributes:
        run: which run of the campaign it belongs to (0 = the first); sequences start again with each run.
        measured_from: `happened` when the last sign of progress is known, else `noticed`.
        noticed_after, decided_after, mended_after: seconds since that moment; null when not known or still open.
        version: the version whose round was under way (by the clock, so approximate); null without commits.
    """

    run: int = 0
    measured_from: Literal["happened", "noticed"] = "noticed"
    noticed_after: float | None = None
    decided_after: float | None = None
    mended_after: float | None = None
    version: int | None = None


class LedgerShare(ReportPart):
    """One bucket: its seconds, and its share of the paid node-seconds in percent (they sum to 100)."""

    bucket: str
    seconds: float
    percent: float


class Ledger(ReportPart):
    """Where the paid node-seconds went.

    Attributes:
        source: who says so: the workflow's status, ledger records of the journal, or both (several runs).
        runs: how many runs of the campaign it covers.
        goodput: share of the paid node-seconds in bucket `train`, 0 to 1; null when nothing was paid for yet.
        as_of: when it was drawn up; null when not known.
    """

    source: Literal["status", "journal", "journal and status"]
    runs: int
    paid_node_seconds: float
    cost: float | None
    buckets: list[LedgerShare]
    goodput: float | None
    as_of: float | None = None


class CheckpointEntry(ReportPart):
    """One checkpoint manifest; `problem` says why it cannot be used, empty when its manifest reads well."""

    version: int
    created_at: float | None = None
    size_bytes: int | None = None
    loss: float | None = None
    problem: str = ""


class PublishedModel(ReportPart):
    model: str
    number: int
    campaign_version: int
    loss: float | None = None
    validation_loss: float | None = None
    tokens_total: int = 0
    published_at: float = 0.0
    files: list[str] = Field(default_factory=list)
    size_bytes: int = 0


class OffsetsAudit(ReportPart):
    """Was every committed sample committed exactly once? `not_run` when there is nothing to audit."""

    result: Literal["clean", "problems", "not_run"]
    problems: list[str] = Field(default_factory=list)


class Report(ReportPart):
    """Everything a campaign's store (and, when given, its status) says about it.

    Attributes:
        phase: from the status, else from the last ledger record or the roster (`phase_source`); empty = not known.
        version: newest committed version, -1 without any.
        tokens_per_second: committed tokens over the time from version 0 to the newest version.
        recent_tokens_per_second: the same over the last rounds.
        tokens_per_paid_second: committed tokens per paid node-second.
        ledger: null = not known: neither a status was given nor did the journal hold a ledger record.
        incidents_total: may exceed `len(incidents)` when a part of the journal is missing.
        problems: what could not be read or does not add up, one line each; the report says nothing of those parts.
    """

    schema_version: int = 1
    campaign: str
    store_url: str
    generated_at: float
    phase: str = ""
    phase_source: Literal["status", "journal", "roster", ""] = ""
    detail: str = ""
    waiting_for: str = ""
    failure: str = ""
    setup: Setup | None = None
    version: int = -1
    merged_rounds: int = 0
    tokens_total: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    started_at: float | None = None
    last_commit_at: float | None = None
    tokens_per_second: float | None = None
    recent_tokens_per_second: float | None = None
    tokens_per_paid_second: float | None = None
    uploaded_bytes: int = 0
    curve: list[CurvePoint] = Field(default_factory=list)
    rollbacks: list[RolledBack] = Field(default_factory=list)
    rounds: list[RoundMembers] = Field(default_factory=list)
    nodes: list[NodeContribution] = Field(default_factory=list)
    rejections: list[RejectedContribution] = Field(default_factory=list)
    incidents: list[ReportedIncident] = Field(default_factory=list)
    incidents_total: int = 0
    ledger: Ledger | None = None
    cost: float | None = None
    checkpoints: list[CheckpointEntry] = Field(default_factory=list)
    models: list[PublishedModel] = Field(default_factory=list)
    audit: OffsetsAudit = OffsetsAudit(result="not_run")
    problems: list[str] = Field(default_factory=list)
