"""A whole campaign in a folder, with nodes that are functions: for tests of the aggregator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from anabasis.campaign.records import ContributionHeader, Roster, RosterMember, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.errors import PreconditionFailed
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import newest_version, read_roster, read_spec, read_version, write_roster
from anabasis.training.aggregator import Aggregator, Interrupted
from anabasis.training.contribution import pack_contribution
from anabasis.training.parameters import count_of
from anabasis.training.prepare import prepare_campaign
from anabasis.training.quantize import encode_update

NAME = "demo"


def spec_for(folder: Path, **sections: Any) -> CampaignSpec:
    """A campaign on a small text of its own, with 4,096 parameters and two slots."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {number} of a text that is long enough\n" for number in range(400)))
    values: dict[str, Any] = {
        "name": NAME,
        "recipe": "tiny",
        "data": {
            "url": str(text),
            "tokenizer": "bytes",
            "sequence_length": 16,
            "partitions": 4,
            "validation_samples": 8,
        },
        "fleet": {"slots": 2},
        "training": {"inner_steps": 4, "batch_size": 2, "deterministic": True},
        "rounds": {"poll_seconds": 0.01},
        "target": {"rounds": 6},
    }
    for section, fields in sections.items():
        values[section] = {**values.get(section, {}), **fields} if isinstance(fields, dict) else fields
    return parse_spec(values)


class World:
    """The campaign's root, its roster, and its nodes' part."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder = folder
        self.url = (folder / "store").as_uri()
        self.store: ObjectStore = open_store(self.url).child(keys.campaign_root(NAME))
        folder.mkdir(exist_ok=True)
        if sections or newest_version(self.store) is None:
            prepare_campaign(self.store, spec_for(folder, **sections), tick=lambda _: None, clock=lambda: 0.0)
        self.count = count_of(read_version(self.store, 0).layout or [])
        if read_roster(self.store) is None:
            self.seat(*range(self.spec.fleet.slots))

    @property
    def spec(self) -> CampaignSpec:
        return read_spec(self.store)

    @property
    def newest(self) -> VersionManifest:
        return read_version(self.store, newest_version(self.store) or 0)

    def seat(self, *slots: int, attempt: int = 1, **fields: Any) -> Roster:
        """Write a roster with nodes in these slots."""
        before = read_roster(self.store)
        roster = Roster(
            campaign=NAME,
            generation=before.generation + 1 if before else 1,
            members=[RosterMember(slot=slot, attempt=attempt, nonce=f"n{slot}-{attempt}") for slot in slots],
            **{
                "phase": "training",
                "slots": list(range(self.spec.fleet.slots)),
                "target_rounds": self.spec.target.rounds,
                **fields,
            },
        )
        assert write_roster(self.store, roster)
        return roster

    def contribution(
        self,
        slot: int,
        *,
        version: int | None = None,
        attempt: int = 1,
        scale: float = 1e-3,
        update: torch.Tensor | None = None,
        **fields: Any,
    ) -> bytes:
        """What the node in a slot uploads: a function of slot and version alone."""
        base = self.newest if version is None else read_version(self.store, version)
        assert base.plan is not None
        assignment = base.plan.assignments[str(slot)]
        spec = self.spec
        samples = assignment.inner_steps * spec.training.batch_size
        lane = str(assignment.partitions[base.version % len(assignment.partitions)])
        made = torch.Generator().manual_seed(1_000 * base.version + slot)
        delta = torch.randn(self.count, generator=made) * scale if update is None else update
        values: dict[str, Any] = {
            "campaign": NAME,
            "base_version": base.version,
            "base_chain": base.chain,
            "slot": slot,
            "attempt": attempt,
            "nonce": f"n{slot}-{attempt}",
            "steps": assignment.inner_steps,
            "tokens": samples * spec.data.sequence_length,
            "loss": 5.0 - 0.1 * base.version + 0.01 * slot,
            "consumed": {lane: (base.offsets[lane], base.offsets[lane] + samples)},
            "train_seconds": 1.0 + slot,
            "sync_seconds": 0.25,
            "wait_seconds": 0.125,
            "compression": "int8",
            "payload_hash": "",
        }
        header = ContributionHeader(**{**values, **fields})
        return pack_contribution(header, encode_update(delta, compression=header.compression))

    def post(self, slot: int, *, version: int | None = None, attempt: int = 1, **fields: Any) -> str:
        """Upload a contribution, as a node does; returns its key."""
        base = self.newest.version if version is None else version
        key = keys.mail(base, slot, attempt)
        data = self.contribution(slot, version=base, attempt=attempt, **fields)
        try:
            self.store.put(key, data, if_absent=True)
        except PreconditionFailed:
            pass
        return key

    def aggregator(self, **options: Any) -> Aggregator:
        return Aggregator(self.store, **{"identity": "here", "sleep": lambda _: None, **options})

    def nodes(self, *slots: int, until: int = 10_000) -> Callable[[str], None]:
        """A tick that plays these nodes: each posts to the newest version once."""
        seen: set[int] = set()

        def tick(_: str) -> None:
            version = newest_version(self.store) or 0
            if version in seen or version >= until:
                return
            seen.add(version)
            for slot in slots:
                self.post(slot, version=version)

        return tick


def patient(ticks: int, *, then: Callable[[], None] | None = None) -> Callable[[str], None]:
    """A tick that interrupts after so many calls: a wait that must not go on for ever."""
    left = [ticks]

    def tick(reason: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            if then:
                then()
            raise Interrupted(reason)

    return tick


def both(*ticks: Callable[[str], None]) -> Callable[[str], None]:
    """Several ticks as one."""

    def tick(reason: str) -> None:
        for item in ticks:
            item(reason)

    return tick


def facts(store: ObjectStore, versions: Iterable[int]) -> list[tuple[Any, ...]]:
    """What must not depend on crashes or clocks."""
    found = []
    for version in versions:
        m = read_version(store, version)
        merged = [(c.header.slot, c.header.payload_hash, c.weight) for c in m.contributions]
        found.append((m.version, m.kind, m.chain, m.fingerprint, m.offsets, m.tokens_total, m.loss, merged))
    return found
