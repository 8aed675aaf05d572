"""The audit of a campaign's commits: was every sample counted exactly once, and does the chain hold?

It trusts nothing but the manifests themselves, and shares no code with what wrote them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from anabasis.campaign.records import CommittedContribution, VersionManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.numbering import numbers_in
from anabasis.storage.records_json import parse_record

READERS = 8
"""Concurrent reads: hides a distant store's latency."""

WINDOW = 64
"""Manifests in memory at a time: each is about a kilobyte per contribution."""

WEIGHT_TOLERANCE = 1e-6
"""Weights are float64 quotients of token counts; their sum is off by a few units in the last place."""


def audit_offsets(store: ObjectStore) -> list[str]:
    """Problems of a campaign's commits, each in one line; empty when all is well.

    Checked: versions are contiguous from 0; each follows on its parent by chain hash; the partitions' offsets
    start at 0 and grow by exactly what the merged contributions consumed, which begins exactly where the parent
    ended; no slot and no partition occurs twice in a round; contributions were planned; a rollback moves no offset
    and restores the fingerprint of the version that it names; tokens and rounds add up.

    Args:
        store: the campaign's root.
    """
    return list(_problems(store))


def _problems(store: ObjectStore) -> Iterator[str]:
    numbers = numbers_in(store, "versions/")
    if not numbers:
        yield "versions: none is committed"
        return
    yield from (f"version {number}: is missing" for number in _gaps(numbers))
    fingerprints: dict[int, str] = {}
    parent: VersionManifest | None = None
    for number, found in _read(store, numbers):
        if isinstance(found, str):
            yield f"version {number}: {found}"
            parent = None
            continue
        checks = _initial(found) if number == 0 else _successor(found, parent=parent, fingerprints=fingerprints)
        yield from (f"version {number}: {text}" for text in checks)
        fingerprints[number] = found.fingerprint
        parent = found


def _gaps(numbers: list[int]) -> list[int]:
    return sorted(set(range(numbers[-1] + 1)) - set(numbers))


def _read(store: ObjectStore, numbers: list[int]) -> Iterator[tuple[int, VersionManifest | str]]:
    remaining = iter(numbers)
    with ThreadPoolExecutor(READERS, thread_name_prefix="audit") as pool:
        while window := list(islice(remaining, WINDOW)):
            yield from zip(window, pool.map(lambda number: _manifest(store, number), window), strict=True)


def _manifest(store: ObjectStore, number: int) -> VersionManifest | str:
    try:
        manifest = parse_record(VersionManifest, store.get(keys.version(number)), key=keys.version(number))
    except (CorruptData, ObjectNotFound) as error:
        return f"cannot be read: {error}"
    return manifest if manifest.version == number else f"says that it is version {manifest.version}"


def _initial(manifest: VersionManifest) -> Iterator[str]:
    if manifest.kind != "initial" or manifest.parent is not None:
        yield f"kind {manifest.kind!r} with parent {manifest.parent}, not 'initial' without"
    yield from _chain(manifest, parent_chain="")
    yield from (f"partition {p}: starts at {n}, not at 0" for p, n in manifest.offsets.items() if n != 0)
    if manifest.contributions or manifest.tokens_total or manifest.merged_rounds:
        yield "counts contributions, tokens or rounds before there were any"


def _successor(
    manifest: VersionManifest, *, parent: VersionManifest | None, fingerprints: dict[int, str]
) -> Iterator[str]:
    if manifest.kind == "initial" or manifest.parent != manifest.version - 1:
        yield f"kind {manifest.kind!r} with parent {manifest.parent}"
    if parent is None or parent.version != manifest.version - 1:
        yield "its parent is missing or unreadable, so what it added cannot be checked"
        return
    if manifest.campaign != parent.campaign:
        yield f"belongs to campaign {manifest.campaign!r}, its parent to {parent.campaign!r}"
    yield from _chain(manifest, parent_chain=parent.chain)
    if manifest.kind == "rollback":
        yield from _rollback(manifest, parent=parent, fingerprints=fingerprints)
    else:
        yield from _merge(manifest, parent=parent)


def _chain(manifest: VersionManifest, *, parent_chain: str) -> Iterator[str]:
    """Chain = BLAKE3 of `<parent's chain>/<hash of the blob that makes this version>`."""
    blob, unexpected = manifest.snapshot, manifest.delta
    if manifest.kind == "merge":
        blob, unexpected = unexpected, blob
    if not manifest.fingerprint:
        yield "has no fingerprint"
    if blob is None or unexpected is not None:
        yield f"kind {manifest.kind!r} must have a {'delta' if manifest.kind == 'merge' else 'snapshot'}, and only that"
    elif manifest.chain != hash_bytes(f"{parent_chain}/{blob.hash}".encode()):
        yield "its chain hash does not follow from its parent's and its blob's"


def _rollback(manifest: VersionManifest, *, parent: VersionManifest, fingerprints: dict[int, str]) -> Iterator[str]:
    restored = manifest.rolled_back_to
    if manifest.contributions:
        yield "a rollback merges contributions"
    if manifest.offsets != parent.offsets:
        yield "a rollback moves offsets"
    if (manifest.tokens_total, manifest.merged_rounds) != (parent.tokens_total, parent.merged_rounds):
        yield "a rollback changes the count of tokens or rounds"
    if restored is None or not 0 <= restored < manifest.version:
        yield f"rolls back to version {restored}"
    elif fingerprints.get(restored, manifest.fingerprint) != manifest.fingerprint:
        yield f"its fingerprint is not that of version {restored}, to which it rolls back"


def _merge(manifest: VersionManifest, *, parent: VersionManifest) -> Iterator[str]:
    merged = manifest.contributions
    if not merged:
        yield "merges no contribution"
    for slot, times in Counter(item.header.slot for item in merged).items():
        if times > 1:
            yield f"slot {slot}: merged {times} times"
    expected = dict(parent.offsets)
    for item in merged:
        yield from _contribution(item, parent=parent, expected=expected)
    for partition in sorted(expected.keys() | manifest.offsets.keys()):
        wanted, found = expected.get(partition), manifest.offsets.get(partition)
        if wanted != found:
            yield f"partition {partition}: offset is {found}; the parent's and what was consumed give {wanted}"
    if merged and not math.isclose(sum(item.weight for item in merged), 1.0, abs_tol=WEIGHT_TOLERANCE):
        yield f"weights sum to {sum(item.weight for item in merged):.9g}, not 1"
    tokens = parent.tokens_total + sum(item.header.tokens for item in merged)
    if manifest.tokens_total != tokens:
        yield f"counts {manifest.tokens_total} tokens; the parent's and its contributions' give {tokens}"
    if manifest.merged_rounds != parent.merged_rounds + 1:
        yield f"is merged round {manifest.merged_rounds}; its parent was {parent.merged_rounds}"


def _contribution(item: CommittedContribution, *, parent: VersionManifest, expected: dict[str, int]) -> Iterator[str]:
    """Check one contribution, and move the expected offsets by what it consumed."""
    header, who = item.header, f"contribution {item.header.slot}-{item.header.attempt}"
    if (header.campaign, header.base_version, header.base_chain) != (parent.campaign, parent.version, parent.chain):
        yield f"{who}: was trained from another version ({header.campaign} {header.base_version})"
    assignment = parent.plan.assignments.get(str(header.slot)) if parent.plan else None
    if assignment is None:
        yield f"{who}: was not planned"
    consumed = 0
    for partition, (first, end) in header.consumed.items():
        consumed += end - first
        if assignment is not None and int(partition) not in assignment.partitions:
            yield f"{who}: partition {partition} was not assigned to its slot"
        at = expected.get(partition)
        if at is None:
            yield f"{who}: partition {partition} does not exist"
        elif first != at:
            overlap = "again" if first < at else f"and skips {first - at}"
            yield f"{who}: partition {partition} is consumed from {first} {overlap}; {at} are committed"
        if end < first:
            yield f"{who}: partition {partition} is consumed backwards, from {first} to {end}"
        if at is not None:
            expected[partition] = end
    if consumed <= 0 or header.tokens <= 0:
        yield f"{who}: counts {header.tokens} tokens of {consumed} samples"
