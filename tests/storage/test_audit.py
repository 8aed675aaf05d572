"""The audit finds what is planted, and nothing in campaigns that are sound."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from anabasis.campaign.records import VersionManifest, keys
from anabasis.errors import StoreUnavailable
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import audit_offsets, commit_version
from tests.report.samples import SAMPLES, blob, chain, manifests
from tests.support.flaky import FlakyStore

VICTIM = 4
ROLLBACK = 7


def sound() -> list[VersionManifest]:
    return manifests(9, slots=3, rollback_at=ROLLBACK, rejected_at=5, replaced_at={1: 6})


def commit(store: ObjectStore, versions: list[VersionManifest]) -> None:
    for manifest in versions:
        store.put(keys.version(manifest.version), manifest.model_dump_json().encode())


def with_header(manifest: VersionManifest, index: int = 0, **changes: Any) -> VersionManifest:
    items = list(manifest.contributions)
    items[index] = items[index].model_copy(update={"header": items[index].header.model_copy(update=changes)})
    return manifest.model_copy(update={"contributions": items})


def at(version: int, change: Callable[[VersionManifest], VersionManifest]) -> list[VersionManifest]:
    """A campaign in which one version was changed behind its back."""
    return [change(manifest) if manifest.version == version else manifest for manifest in sound()]


def fields(**changes: Any) -> Callable[[VersionManifest], VersionManifest]:
    return lambda manifest: manifest.model_copy(update=changes)


def header(**changes: Any) -> Callable[[VersionManifest], VersionManifest]:
    return lambda manifest: with_header(manifest, **changes)


def offset(partition: str, by: int) -> Callable[[VersionManifest], VersionManifest]:
    return lambda m: m.model_copy(update={"offsets": {**m.offsets, partition: m.offsets[partition] + by}})


def weighing(weight: float) -> Callable[[VersionManifest], VersionManifest]:
    return lambda m: m.model_copy(
        update={"contributions": [item.model_copy(update={"weight": weight}) for item in m.contributions]}
    )


def test_a_sound_campaign_passes(folder_store: ObjectStore) -> None:
    for manifest in sound():
        commit_version(folder_store, manifest)
    assert audit_offsets(folder_store) == []


def test_a_long_one_too(folder_store: ObjectStore) -> None:
    commit(folder_store, manifests(150, slots=2))
    assert audit_offsets(folder_store) == []


FIRST = 3 * SAMPLES
"""Where partition 0 stands in the victim's parent."""

FAULTS: dict[str, tuple[list[VersionManifest], str]] = {
    "samples skipped": (at(VICTIM, header(consumed={"0": (FIRST + 5, FIRST + SAMPLES)})), r"version 4: .*skips 5"),
    "samples trained twice": (at(VICTIM, header(consumed={"0": (FIRST - 5, FIRST + SAMPLES)})), "from 475 again"),
    "consumed backwards": (at(VICTIM, header(consumed={"0": (FIRST, FIRST - 1)})), "consumed backwards"),
    "nothing consumed": (at(VICTIM, header(consumed={})), "of 0 samples"),
    "another's partition": (at(VICTIM, header(consumed={"2": (FIRST, FIRST + SAMPLES)})), "not assigned to its slot"),
    "a partition that is not": (at(VICTIM, header(consumed={"9": (0, SAMPLES)})), "partition 9 does not exist"),
    "offset too high": (at(VICTIM, offset("1", 1)), "partition 1: offset is 641; .* give 640"),
    "offset too low": (at(VICTIM, offset("1", -1)), "partition 1: offset is 639; .* give 640"),
    "offset set back later": (at(8, offset("0", -SAMPLES)), "version 8: partition 0"),
    "partition lost": (at(VICTIM, fields(offsets={"0": 640, "1": 640})), "partition 2: offset is None"),
    "slot twice": (at(VICTIM, lambda m: with_header(m, 1, slot=0)), "slot 0: merged 2 times"),
    "slot not planned": (at(VICTIM, header(slot=77)), "contribution 77-1: was not planned"),
    "trained from another version": (at(VICTIM, header(base_version=2)), "trained from another version"),
    "trained from another branch": (at(VICTIM, header(base_chain="0" * 64)), "trained from another version"),
    "of another campaign": (at(VICTIM, header(campaign="other")), r"another version \(other 3\)"),
    "tokens invented": (at(VICTIM, header(tokens=1)), "version 4: counts .* tokens"),
    "tokens lost": (at(VICTIM, fields(tokens_total=1)), "version 4: counts 1 tokens"),
    "round counted twice": (at(VICTIM, fields(merged_rounds=5)), "is merged round 5; its parent was 3"),
    "nothing merged": (at(VICTIM, fields(contributions=[])), "merges no contribution"),
    "weights": (at(VICTIM, weighing(0.5)), r"weights sum to 1\.5, not 1"),
    "chain broken": (at(VICTIM, fields(chain="0" * 64)), "version 4: its chain hash does not follow"),
    "delta replaced": (at(VICTIM, fields(delta=blob("forged"))), "version 4: its chain hash does not follow"),
    "branch": (at(VICTIM, fields(delta=blob("forged"), chain=chain("elsewhere", blob("forged")))), "chain hash"),
    "no delta": (at(VICTIM, fields(delta=None)), "must have a delta"),
    "delta and snapshot": (at(VICTIM, fields(snapshot=blob("x"))), "must have a delta, and only that"),
    "no fingerprint": (at(VICTIM, fields(fingerprint="")), "has no fingerprint"),
    "wrong parent": (at(VICTIM, fields(parent=2)), "kind 'merge' with parent 2"),
    "wrong number": (at(VICTIM, fields(version=40))[:4] + sound()[5:], "version 4: is missing"),
    "campaign changes": (at(VICTIM, fields(campaign="other")), "belongs to campaign 'other'"),
    "rollback moves offsets": (at(ROLLBACK, offset("0", -SAMPLES)), "version 7: a rollback moves offsets"),
    "rollback forgets tokens": (at(ROLLBACK, fields(tokens_total=0)), "a rollback changes the count"),
    "rollback to nowhere": (at(ROLLBACK, fields(rolled_back_to=None)), "rolls back to version None"),
    "rollback to the future": (at(ROLLBACK, fields(rolled_back_to=8)), "rolls back to version 8"),
    "rollback to other parameters": (at(ROLLBACK, fields(fingerprint="f" * 32)), "not that of version 4"),
    "rollback without snapshot": (at(ROLLBACK, fields(snapshot=None)), "must have a snapshot"),
    "rollback that merges": (
        at(ROLLBACK, lambda m: m.model_copy(update={"contributions": sound()[6].contributions})),
        "a rollback merges contributions",
    ),
    "start not at zero": (at(0, offset("1", 7)), "version 0: partition 1: starts at 7"),
    "start with tokens": (at(0, fields(tokens_total=7)), "version 0: counts"),
    "start that is a merge": (at(0, fields(kind="merge", delta=blob("x"), snapshot=None)), "version 0: kind 'merge'"),
    "second start": (at(VICTIM, fields(kind="initial")), "version 4: kind 'initial'"),
    "gap": ([m for m in sound() if m.version != VICTIM], "version 4: is missing"),
    "no start": (sound()[1:], "version 0: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(folder_store: ObjectStore, fault: str) -> None:
    planted, expected = FAULTS[fault]
    commit(folder_store, planted)
    problems = audit_offsets(folder_store)
    text = "\n".join(problems)
    assert re.search(expected, text), text
    assert all(problem.startswith("version ") for problem in problems)


@pytest.mark.parametrize("value", [b"", b"{}", b"torn {", b"\xff"])
def test_a_damaged_version_is_found_and_the_others_are_checked(folder_store: ObjectStore, value: bytes) -> None:
    commit(folder_store, at(8, offset("0", 1)))
    folder_store.put(keys.version(VICTIM), value)
    problems = audit_offsets(folder_store)
    assert any(problem.startswith("version 4: cannot be read") for problem in problems)
    assert any(problem.startswith("version 5: its parent is missing") for problem in problems)
    assert any(problem.startswith("version 8: partition 0") for problem in problems)


def test_an_empty_campaign_is_a_problem(folder_store: ObjectStore) -> None:
    assert audit_offsets(folder_store) == ["versions: none is committed"]


def test_a_store_that_does_not_answer_is_no_verdict(folder_store: ObjectStore) -> None:
    commit(folder_store, sound())
    flaky = FlakyStore(folder_store, seed=1, before=0.3)
    with pytest.raises(StoreUnavailable):
        audit_offsets(flaky)
