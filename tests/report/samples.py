"""Synthetic campaigns: manifests as an aggregator would commit them, with invented numbers."""

from __future__ import annotations

import json
import math

from blake3 import blake3

from anabasis.campaign.records import (
    Assignment,
    BlobRef,
    CommittedContribution,
    ContributionHeader,
    Rejection,
    RoundPlan,
    VersionManifest,
    keys,
)
from anabasis.campaign.spec import parse_spec
from anabasis.campaign.status import Bucket, CampaignStatus, Incident, NodeState, NodeStatus, Phase
from anabasis.storage import versions
from anabasis.storage.base import ObjectStore

START = 1_800_000_000.0
ROUND_SECONDS = 12.0
SEQUENCE = 128
SAMPLES = 160


def loss_at(version: int) -> float:
    return 2.0 + 4.5 * math.exp(-version / 12) + 0.08 * math.sin(version * 1.7)


def manifests(
    count: int,
    *,
    campaign: str = "demo",
    slots: int = 4,
    rollback_at: int | None = None,
    rejected_at: int | None = None,
    replaced_at: dict[int, int] | None = None,
    nonce: str = "abc",
) -> list[VersionManifest]:
    """Versions 0 to `count`; `replaced_at` maps slot → version from which its second machine contributes."""
    made = [_initial(campaign, slots)]
    while len(made) <= count:
        version = len(made)
        if version == rollback_at:
            made.append(_rollback(made[-1], restored=max(0, version - 3), slots=slots))
            continue
        attempts = {s: 2 if replaced_at and version >= replaced_at.get(s, 10**9) else 1 for s in range(slots)}
        gone = {s for s, first in (replaced_at or {}).items() if version == first - 1}
        bad = [0] if version == rejected_at else []
        made.append(_merge(made[-1], attempts=attempts, gone=gone, bad=bad, slots=slots, nonce=nonce))
    return made


def blob(name: str, size: int = 1_000) -> BlobRef:
    return BlobRef(key=f"params/{name}.safetensors", hash=blake3(name.encode()).hexdigest(), size_bytes=size)


def chain(parent: str, made_by: BlobRef) -> str:
    """As `anabasis.training.chain.next_chain` has it, without torch."""
    return blake3(f"{parent}/{made_by.hash}".encode()).hexdigest()


def plan(slots: int) -> RoundPlan:
    return RoundPlan(
        assignments={str(s): Assignment(partitions=[s], inner_steps=20) for s in range(slots)},
        outer_lr=0.7,
        outer_momentum=0.9,
    )


def _initial(campaign: str, slots: int) -> VersionManifest:
    return VersionManifest(
        campaign=campaign,
        version=0,
        parent=None,
        kind="initial",
        chain=chain("", blob("initial")),
        fingerprint=f"{0:032x}",
        snapshot=blob("initial"),
        offsets={str(s): 0 for s in range(slots)},
        plan=plan(slots),
        committed_at=START,
        opened_at=START,
    )


def _rollback(parent: VersionManifest, *, restored: int, slots: int) -> VersionManifest:
    version = parent.version + 1
    return parent.model_copy(
        update={
            "version": version,
            "parent": parent.version,
            "kind": "rollback",
            "rolled_back_to": restored,
            "chain": chain(parent.chain, blob(f"restored{restored}")),
            "fingerprint": f"{restored:032x}",
            "delta": None,
            "snapshot": blob(f"restored{restored}"),
            "contributions": [],
            "rejected": [],
            "missing": [],
            "plan": plan(slots),
            "loss": loss_at(restored),
            "committed_at": parent.committed_at + 2.0,
            "opened_at": parent.committed_at,
        }
    )


def _merge(
    parent: VersionManifest, *, attempts: dict[int, int], gone: set[int], bad: list[int], slots: int, nonce: str
) -> VersionManifest:
    version = parent.version + 1
    present = [slot for slot in attempts if slot not in gone and slot not in bad]
    contributions: list[CommittedContribution] = []
    offsets = dict(parent.offsets)
    for slot in present:
        first = offsets[str(slot)]
        offsets[str(slot)] = first + SAMPLES
        header = ContributionHeader(
            campaign=parent.campaign,
            base_version=parent.version,
            base_chain=parent.chain,
            slot=slot,
            attempt=attempts[slot],
            nonce=f"{nonce}{slot}",
            steps=20,
            tokens=SAMPLES * SEQUENCE,
            loss=loss_at(version),
            consumed={str(slot): (first, first + SAMPLES)},
            train_seconds=9.0,
            sync_seconds=1.0,
            wait_seconds=1.5,
            compression="int8",
            payload_hash="0" * 64,
            validation_loss=loss_at(parent.version) + 0.1 if slot == 0 and parent.version % 5 == 0 else None,
        )
        contributions.append(CommittedContribution(header=header, weight=1 / len(present), size_bytes=250_000))
    return VersionManifest(
        campaign=parent.campaign,
        version=version,
        parent=parent.version,
        kind="merge",
        chain=chain(parent.chain, blob(f"delta{version}")),
        fingerprint=f"{version:032x}",
        delta=blob(f"delta{version}"),
        contributions=contributions,
        rejected=[Rejection(slot=slot, attempt=1, reason="norm", detail="norm 31.2, median 1.4") for slot in bad],
        missing=sorted(gone),
        offsets=offsets,
        plan=plan(slots),
        loss=loss_at(version),
        loss_mean=loss_at(version),
        tokens_total=parent.tokens_total + len(present) * SAMPLES * SEQUENCE,
        merged_rounds=parent.merged_rounds + 1,
        close_reason="all contributed" if not gone else "deadline",
        aggregator="one",
        opened_at=parent.committed_at,
        committed_at=parent.committed_at + ROUND_SECONDS,
        merge_seconds=0.2,
    )


def incident(sequence: int, *, at: float, kind: str = "lost", **changes: object) -> Incident:
    """A node that was lost, noticed after 5 s, replaced after 20 s."""
    values: dict[str, object] = {
        "sequence": sequence,
        "kind": kind,
        "text": f"node 1-{sequence}: no heartbeat",
        "decision": "replaced",
        "slot": 1,
        "attempt": sequence,
        "happened_at": at,
        "noticed_at": at + 5,
        "decided_at": at + 5.5,
        "mended_at": at + 20,
    }
    return Incident.model_validate(values | changes)


def ledger_entry(*, at: float | None = None, scale: float = 1.0, outcome: str = "completed") -> dict[str, object]:
    """The last record of a run's journal: 1000 paid node-seconds times `scale`."""
    return {
        "kind": "ledger",
        "paid_node_seconds": 1_000.0 * scale,
        "cost": 0.75 * scale,
        "ledger": {name: seconds * scale for name, seconds in BUCKETS.items()},
        "outcome": outcome,
        "failure": "",
        "at": at,
    }


BUCKETS = {"boot": 60.0, "train": 700.0, "sync": 80.0, "wait": 90.0, "lost": 40.0, "paused": 10.0, "release": 20.0}


def status(**changes: object) -> CampaignStatus:
    """Of a campaign in training that started at `START`."""
    values: dict[str, object] = {
        "name": "demo",
        "phase": Phase.TRAINING,
        "started_at": START - 30,
        "now": START + 600,
        "nodes": [
            NodeStatus(slot=0, attempt=1, nonce="abc0", state=NodeState.READY, provider="local", since=START),
            NodeStatus(slot=1, attempt=2, nonce="abc1", state=NodeState.READY, provider="local", since=START),
        ],
        "paid_node_seconds": 1_000.0,
        "cost": 0.75,
        "ledger": {Bucket(name): seconds for name, seconds in BUCKETS.items()},
    }
    return CampaignStatus.model_validate(values | changes)


def write_campaign(
    root: ObjectStore,
    committed: list[VersionManifest],
    *,
    campaign: str = "demo",
    journal: list[list[object]] | None = None,
    spec: bool = True,
) -> ObjectStore:
    """Commit the versions in order, as the aggregator does, with a journal; returns the campaign's store."""
    store = root.child(keys.campaign_root(campaign))
    if spec:
        versions.write_spec(store, parse_spec({"name": campaign, "target": {"rounds": 60}}))
    for manifest in committed:
        versions.commit_version(store, manifest)
    for sequence, entries in enumerate(journal or []):
        store.put(keys.journal(sequence), json.dumps(entries).encode(), if_absent=True)
    return store


def eventful(root: ObjectStore, *, campaign: str = "demo") -> ObjectStore:
    """60 versions with a rollback, a rejection, two replaced nodes, five incidents and a final ledger record."""
    incidents = [
        incident(1, at=START + 14 * ROUND_SECONDS, attempt=1),
        incident(2, at=START + 47 * ROUND_SECONDS, kind="frozen", slot=3, attempt=1),
        incident(3, at=START + 41 * ROUND_SECONDS, kind="corrupt_contribution", slot=0, attempt=1, happened_at=None),
        incident(4, at=START + 50 * ROUND_SECONDS, kind="aggregator_failed", slot=None, attempt=None),
        incident(5, at=START + 55 * ROUND_SECONDS, kind="preempted", slot=2, attempt=1, mended_at=None),
    ]
    entries: list[object] = [item.model_dump(mode="json") for item in incidents]
    return write_campaign(
        root,
        manifests(60, campaign=campaign, rollback_at=30, rejected_at=42, replaced_at={1: 15, 3: 48}),
        campaign=campaign,
        journal=[entries[:2], [*entries[2:], ledger_entry(at=START + 900)]],
    )
