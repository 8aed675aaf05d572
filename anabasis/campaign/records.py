"""Records that live in the object store: the durable truth of the data plane.

All are pydantic models written as JSON. The layout under `<store>/campaigns/<name>/` is in `keys`.
Times are seconds; `*_at` are seconds since the epoch by the writer's clock and serve only for display and
deadlines, never for ordering: versions order everything.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Base: unknown fields are ignored, so that an older reader survives a newer writer."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class BlobRef(Record):
    """A content-addressed object: `hash` is the hex BLAKE3 (256 bit) of its bytes."""

    key: str
    hash: str
    size_bytes: int


class TensorLayout(Record):
    """Where one tensor lies in the flat parameter vector (float32, row-major, `offset` in elements)."""

    name: str
    shape: list[int]
    offset: int

    @property
    def count(self) -> int:
        total = 1
        for dimension in self.shape:
            total *= dimension
        return total


class Assignment(Record):
    """What one slot does in a round: its partitions (lanes of the sample order) and its inner steps."""

    partitions: list[int]
    inner_steps: int


class RoundPlan(Record):
    """How round `v` (from version v to v+1) is to be done. Written into version v's manifest.

    Attributes:
        assignments: by slot (decimal text, as JSON keys are). Slots that are not in it sit the round out.
        expected_seconds: predicted time from commit of v to the last contribution; None when unknown.
        outer_lr, outer_momentum: of the merge that ends this round.
        lr_scale: factor on `training.inner_lr`, constant over this round (warm-up and cosine over rounds).
        evaluate_slot: the slot that evaluates version v on the validation samples, or None.
    """

    assignments: dict[str, Assignment]
    expected_seconds: float | None = None
    outer_lr: float
    outer_momentum: float
    lr_scale: float = 1.0
    evaluate_slot: int | None = None


class ContributionHeader(Record):
    """Metadata of one contribution, stored in the safetensors metadata (key `header`, as JSON).

    Attributes:
        base_version, base_chain: the version that was trained from, and its chain hash.
        consumed: partition (decimal text) → [first, end) sample offsets, starting at the committed offset.
        loss: token-weighted mean training loss over the round's steps.
        tokens: training tokens consumed = samples × sequence length.
        train_seconds, sync_seconds, wait_seconds: since the node's previous contribution: in inner steps; in
            downloads and uploads; waiting for the next version.
        validation_loss: of the *base* version, when the plan asked this slot.
        payload_hash: hex BLAKE3 over the raw bytes of the tensors in name order.
        state: where the node's inner state after this round is (deterministic mode).
    """

    # A loss that is not finite must reach the aggregator as what it is (JSON as Python writes it), not as null.
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    campaign: str
    base_version: int
    base_chain: str
    slot: int
    attempt: int
    nonce: str
    steps: int
    tokens: int
    loss: float
    consumed: dict[str, tuple[int, int]]
    train_seconds: float
    sync_seconds: float
    wait_seconds: float
    compression: Literal["int8", "none"]
    payload_hash: str
    validation_loss: float | None = None
    state: BlobRef | None = None


class CommittedContribution(Record):
    """What the commit says of one merged contribution; `weight` sums to 1 over the round."""

    header: ContributionHeader
    weight: float
    size_bytes: int


class Rejection(Record):
    """A contribution that was not merged. `reason` is one of a fixed few, `detail` is for people."""

    slot: int
    attempt: int
    reason: Literal["corrupt", "not_finite", "norm", "wrong_base", "offsets", "fenced", "shape"]
    detail: str


class VersionManifest(Record):
    """The commit of one version: parameters, data offsets and accounting move together or not at all.

    Attributes:
        kind: `initial`, `merge` of contributions, or `rollback` to an older checkpoint (offsets stay).
        chain: hex BLAKE3 of (parent's chain, hash of the blob that makes this version); identifies the
            parameters, since applying a delta is deterministic.
        fingerprint: hex xxh3_128 over the flat float32 parameters: what a reader checks after applying.
        delta: the quantized outer update (kind `merge`); snapshot: full parameters (other kinds).
        merged_rounds: merges so far (versions minus rollbacks): what the target counts.
        offsets: partition → samples committed so far (cumulative, monotone).
        plan: for the round that starts here (also when the target is reached: a later run may extend it).
        layout: of the flat vector; in the initial version only.
    """

    schema_version: int = 1
    campaign: str
    version: int
    parent: int | None
    kind: Literal["initial", "merge", "rollback"]
    rolled_back_to: int | None = None
    chain: str
    fingerprint: str
    delta: BlobRef | None = None
    snapshot: BlobRef | None = None
    contributions: list[CommittedContribution] = Field(default_factory=list[CommittedContribution])
    rejected: list[Rejection] = Field(default_factory=list[Rejection])
    missing: list[int] = Field(default_factory=list[int])
    offsets: dict[str, int]
    plan: RoundPlan | None
    loss: float | None = None
    loss_mean: float | None = None
    validation_loss: float | None = None
    tokens_total: int = 0
    merged_rounds: int = 0
    close_reason: str = ""
    aggregator: str = ""
    committed_at: float = 0.0
    opened_at: float = 0.0
    merge_seconds: float = 0.0
    layout: list[TensorLayout] | None = None


class RosterMember(Record):
    """The one node that may contribute for a slot now."""

    slot: int
    attempt: int
    nonce: str


class Roster(Record):
    """Who belongs to the campaign now; written only by the campaign workflow, newest generation wins.

    Attributes:
        slots: desired slots; the next plan spreads the partitions over them.
        attempts: slot → highest attempt ever started, so that a later run of the campaign goes on counting.
        target_round, target_tokens, target_loss: when to stop; `extend` changes them.
    """

    campaign: str
    generation: int
    phase: Literal["training", "paused", "finished"]
    slots: list[int]
    members: list[RosterMember]
    attempts: dict[str, int] = Field(default_factory=dict[str, int])
    target_rounds: int
    target_tokens: int | None = None
    target_loss: float | None = None


class CheckpointManifest(Record):
    """All that is needed to resume at `version`; the content hashes make a torn one recognisable.

    Attributes:
        parameters: safetensors with one named float32 tensor per layout entry.
        outer: safetensors of the outer optimizer (momentum, residual), flat.
        manifest_hash: hex BLAKE3 of versions/<version>.json.
    """

    schema_version: int = 1
    campaign: str
    version: int
    chain: str
    fingerprint: str
    parameters: BlobRef
    outer: BlobRef
    manifest_hash: str
    layout: list[TensorLayout]
    offsets: dict[str, int]
    tokens_total: int
    loss: float | None
    created_at: float


class ShardRef(Record):
    """One dataset shard: little-endian unsigned integers of `dtype`."""

    key: str
    hash: str
    size_bytes: int
    tokens: int


class DatasetManifest(Record):
    """A tokenised data set, content-hashed. Sample i is tokens [i·L, i·L + L] (L + 1 of them).

    Attributes:
        samples: to train on: numbers 0 … samples − 1. The `validation_samples` that follow are never trained on.
    """

    schema_version: int = 1
    source: str
    source_bytes: int
    source_hash: str
    tokenizer: Literal["bytes", "bpe"]
    tokenizer_blob: BlobRef | None = None
    vocabulary_size: int
    dtype: Literal["uint16", "uint32"]
    tokens: int
    sequence_length: int
    samples: int
    validation_samples: int
    shards: list[ShardRef]


class ModelVersion(Record):
    """One published model in the registry `models/<name>/registry.json`."""

    model: str
    number: int
    campaign: str
    campaign_version: int
    files: dict[str, BlobRef]
    loss: float | None
    validation_loss: float | None
    tokens_total: int
    contributors: dict[str, int] = Field(default_factory=dict[str, int])
    published_at: float
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])


class keys:  # noqa: N801  (a namespace of functions, used as keys.version(3))
    """Where things are, relative to the campaign's root `campaigns/<name>/`."""

    SPEC = "spec.json"
    ROSTER = "roster.json"
    DATASET = "dataset/manifest.json"
    PROBE = "probe"

    @staticmethod
    def campaign_root(name: str) -> str:
        return f"campaigns/{name}"

    @staticmethod
    def version(number: int) -> str:
        return f"versions/{number:06d}.json"

    @staticmethod
    def parameters(digest: str) -> str:
        return f"params/{digest}.safetensors"

    @staticmethod
    def outer(digest: str) -> str:
        return f"outer/{digest}.safetensors"

    @staticmethod
    def delta(number: int, digest: str) -> str:
        """The update that makes version `number`."""
        return f"deltas/{number:06d}/{digest}.safetensors"

    @staticmethod
    def mail_prefix(base_version: int) -> str:
        return f"mail/{base_version:06d}/"

    @staticmethod
    def mail(base_version: int, slot: int, attempt: int) -> str:
        return f"mail/{base_version:06d}/{slot}-{attempt}.safetensors"

    @staticmethod
    def node_state(base_version: int, slot: int, digest: str) -> str:
        return f"state/{base_version:06d}/{slot}-{digest}.safetensors"

    @staticmethod
    def checkpoint(version: int) -> str:
        return f"checkpoints/{version:06d}.json"

    @staticmethod
    def journal(sequence: int) -> str:
        return f"journal/{sequence:06d}.json"
