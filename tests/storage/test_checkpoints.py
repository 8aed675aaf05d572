"""Checkpoints, and the garbage that they leave behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from anabasis.campaign.records import BlobRef, CheckpointManifest, VersionManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes, put_blob
from anabasis.storage.checkpoints import (
    collect_garbage,
    list_checkpoints,
    newest_sound_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint_manifest,
)
from anabasis.storage.versions import commit_version, read_version
from tests.report.samples import manifests

EVERY = 2
NEWEST = 9
SLOTS = 2
ROLLBACK = 7


def stored(store: ObjectStore, name: str, value: str) -> BlobRef:
    return put_blob(store, f"{name}/{hash_bytes(value.encode())}.safetensors", value.encode())


def checkpoint(store: ObjectStore, version: int) -> CheckpointManifest:
    manifest = read_version(store, version)
    made = CheckpointManifest(
        campaign="demo",
        version=version,
        chain=manifest.chain,
        fingerprint=manifest.fingerprint,
        parameters=stored(store, "params", f"parameters {version}"),
        outer=stored(store, "outer", f"outer {version}"),
        manifest_hash=hash_bytes(store.get(keys.version(version))),
        layout=[],
        offsets=manifest.offsets,
        tokens_total=manifest.tokens_total,
        loss=manifest.loss,
        created_at=0.0,
    )
    write_checkpoint_manifest(store, made)
    return made


def commits(store: ObjectStore) -> Iterator[VersionManifest]:
    """A campaign's manifests with blobs that exist; version 7 rolls back to the checkpoint at 4."""
    for manifest in manifests(NEWEST, slots=SLOTS, rollback_at=ROLLBACK):
        changes: dict[str, object] = {}
        if manifest.kind == "initial":
            changes["snapshot"] = stored(store, "params", "parameters 0")
        elif manifest.kind == "rollback":
            changes["snapshot"] = read_checkpoint(store, 4).parameters
        else:
            delta = f"delta {manifest.version}".encode()
            changes["delta"] = put_blob(store, keys.delta(manifest.version, hash_bytes(delta)), delta)
        yield manifest.model_copy(update=changes)


@pytest.fixture
def campaign(folder_store: ObjectStore) -> ObjectStore:
    """Nine versions with mail, node states and a checkpoint every other version; nothing collected yet."""
    store = folder_store
    for manifest in commits(store):
        commit_version(store, manifest)
        for slot in range(SLOTS):
            store.put(keys.mail(manifest.version, slot, 1), b"mail")
            store.put(keys.node_state(manifest.version, slot, "hash"), b"state")
        if manifest.version % EVERY == 0 and manifest.version:
            checkpoint(store, manifest.version)
    return store


def all_keys(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list()}


def collect(store: ObjectStore, *, keep: int) -> int:
    return collect_garbage(store, keep=keep, grace_seconds=0.0, clock=lambda: time.time() + 10)


def assert_resumable(store: ObjectStore, *, keep: int) -> None:
    """From each kept checkpoint everything leads to the newest version: deltas, mail to repeat the merges, states."""
    kept = list_checkpoints(store)
    assert len(kept) >= keep
    for version in kept[-keep:]:
        manifest = read_checkpoint(store, version)
        assert verify_checkpoint(store, manifest) == []
        for number in range(version, NEWEST + 1):
            assert len(store.list(keys.mail_prefix(number))) == SLOTS
            assert len(store.list(f"state/{number - 1:06d}/")) == SLOTS
            after = read_version(store, number)
            blob = after.delta or after.snapshot
            assert blob is not None
            assert store.head(blob.key) is not None
    initial = read_version(store, 0).snapshot
    assert initial is not None
    assert store.head(initial.key) is not None
    assert len(store.list("versions/")) == NEWEST + 1


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_as_it_was_written(campaign: ObjectStore) -> None:
    assert list_checkpoints(campaign) == [2, 4, 6, 8]
    manifest = read_checkpoint(campaign, 8)
    assert manifest.version == 8
    assert verify_checkpoint(campaign, manifest) == []
    assert newest_sound_checkpoint(campaign) == (manifest, [])
    with pytest.raises(ObjectNotFound):
        read_checkpoint(campaign, 3)


@pytest.mark.parametrize("value", [b"", b'{"version": 8', b"{}", b"\xff"])
def test_a_torn_manifest_is_corrupt_and_skipped(campaign: ObjectStore, value: bytes) -> None:
    campaign.put(keys.checkpoint(8), value)
    with pytest.raises(CorruptData, match=r"checkpoints/000008\.json"):
        read_checkpoint(campaign, 8)
    found, skipped = newest_sound_checkpoint(campaign)
    assert found == read_checkpoint(campaign, 6)
    assert len(skipped) == 1
    assert skipped[0].startswith("checkpoint 8: ")


def test_a_manifest_under_another_number_is_corrupt(campaign: ObjectStore) -> None:
    campaign.put(keys.checkpoint(8), campaign.get(keys.checkpoint(6)))
    with pytest.raises(CorruptData, match="version 6"):
        read_checkpoint(campaign, 8)


@pytest.mark.parametrize("part", ["parameters", "outer"])
@pytest.mark.parametrize("damage", ["gone", "shorter", "flipped"])
def test_damaged_blobs_are_noticed_and_skipped(campaign: ObjectStore, part: str, damage: str) -> None:
    manifest = read_checkpoint(campaign, 8)
    key = getattr(manifest, part).key
    value = campaign.get(key)
    campaign.delete(key)
    if damage != "gone":
        campaign.put(key, value[:-1] if damage == "shorter" else b"X" + value[1:])
    problems = verify_checkpoint(campaign, manifest)
    assert len(problems) == 1
    assert key in problems[0]
    found, skipped = newest_sound_checkpoint(campaign)
    assert found is not None
    assert found.version == 6
    assert skipped == [f"checkpoint 8: {problems[0]}"]


def test_a_checkpoint_of_another_commit_is_noticed(campaign: ObjectStore) -> None:
    manifest = read_checkpoint(campaign, 8)
    campaign.put(keys.version(8), campaign.get(keys.version(7)))
    assert "not the commit" in verify_checkpoint(campaign, manifest)[0]
    campaign.delete(keys.version(8))
    assert "is gone" in verify_checkpoint(campaign, manifest)[0]


def test_older_checkpoints_can_be_asked_for(campaign: ObjectStore) -> None:
    for not_after, expected in ((8, 8), (7, 6), (2, 2)):
        found, skipped = newest_sound_checkpoint(campaign, not_after=not_after)
        assert found is not None
        assert (found.version, skipped) == (expected, [])
    assert newest_sound_checkpoint(campaign, not_after=1) == (None, [])


def test_writing_again_mends_a_torn_manifest(campaign: ObjectStore) -> None:
    manifest = read_checkpoint(campaign, 8)
    campaign.put(keys.checkpoint(8), b"torn")
    write_checkpoint_manifest(campaign, manifest)
    assert read_checkpoint(campaign, 8) == manifest


# --- garbage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_leads_on_from_the_kept_checkpoints_stays_and_the_rest_goes(campaign: ObjectStore, keep: int) -> None:
    before = all_keys(campaign)
    removed = collect(campaign, keep=keep)
    assert_resumable(campaign, keep=keep)
    oldest = {1: 8, 2: 6, 3: 4}[keep]
    assert list_checkpoints(campaign) == list(range(oldest, NEWEST, EVERY))
    left = all_keys(campaign)
    assert removed == len(before - left)
    assert left <= before
    for version in range(oldest):
        assert campaign.list(keys.mail_prefix(version)) == []
        assert campaign.list(f"deltas/{version:06d}/") == []
    for version in range(oldest - 1):
        assert campaign.list(f"state/{version:06d}/") == []
    # Full parameters: of kept checkpoints, of version 0, and of the rollback while it leads on from the oldest.
    named = {read_checkpoint(campaign, version).parameters.key for version in list_checkpoints(campaign)}
    named |= {key for key in (_snapshot(campaign, 0), _snapshot(campaign, ROLLBACK)) if key}
    if keep == 1:
        named.discard(_snapshot(campaign, ROLLBACK))
    assert {info.key for info in campaign.list("params/")} == named
    assert collect(campaign, keep=keep) == 0


def _snapshot(store: ObjectStore, version: int) -> str:
    snapshot = read_version(store, version).snapshot
    return snapshot.key if snapshot else ""


@pytest.mark.parametrize("keep", [4, 5])
def test_with_too_few_checkpoints_only_what_is_before_all_of_them_goes(campaign: ObjectStore, keep: int) -> None:
    before = all_keys(campaign)
    collect(campaign, keep=keep)
    assert list_checkpoints(campaign) == [2, 4, 6, 8]
    assert bool(before - all_keys(campaign)) == (keep == 4)


@pytest.mark.parametrize("damage", ["torn manifest", "gone blob", "short blob"])
def test_checkpoints_that_do_not_look_sound_do_not_count(campaign: ObjectStore, damage: str) -> None:
    torn = read_checkpoint(campaign, 8)
    if damage == "torn manifest":
        campaign.put(keys.checkpoint(8), b"torn")
    elif damage == "gone blob":
        campaign.delete(torn.outer.key)
    else:
        campaign.put(torn.parameters.key, b"short")
    collect(campaign, keep=2)
    assert list_checkpoints(campaign) == [4, 6, 8]
    for version in (4, 6):
        assert verify_checkpoint(campaign, read_checkpoint(campaign, version)) == []
    assert campaign.list(keys.mail_prefix(4)) != []


def test_young_blobs_stay_since_a_manifest_may_be_about_to_name_them(campaign: ObjectStore) -> None:
    in_flight = stored(campaign, "params", "parameters 9, whose checkpoint is being written")
    old = read_checkpoint(campaign, 2)
    collect_garbage(campaign, keep=2)
    assert campaign.head(in_flight.key) is not None
    assert campaign.head(old.outer.key) is not None
    collect(campaign, keep=2)
    assert campaign.head(in_flight.key) is None
    assert campaign.head(old.outer.key) is None


def test_an_unreadable_version_protects_all_blobs(campaign: ObjectStore) -> None:
    blobs = {info.key for folder in ("params/", "outer/") for info in campaign.list(folder)}
    campaign.put(keys.version(7), b"torn")
    collect(campaign, keep=2)
    assert {info.key for folder in ("params/", "outer/") for info in campaign.list(folder)} == blobs


def test_other_things_are_never_touched(campaign: ObjectStore) -> None:
    others = ("spec.json", "roster.json", "dataset/manifest.json", "journal/000000.json", "mail/notes.txt", "mail/x/y")
    for key in others:
        campaign.put(key, b"")
    collect(campaign, keep=1)
    assert all(campaign.head(key) for key in others)


class Killed(BaseException):
    pass


class DyingStore:
    """A store whose user dies at the n-th removal."""

    def __init__(self, store: ObjectStore, *, removals: int) -> None:
        self._store = store
        self.removals = removals

    def __getattr__(self, name: str) -> object:
        if name == "delete":
            self.removals -= 1
            if self.removals < 0:
                raise Killed
        return getattr(self._store, name)

    def delete_prefix(self, prefix: str) -> int:
        for info in self._store.list(prefix):
            self.delete(info.key)  # type: ignore[operator]
        return 0


def test_a_collector_that_dies_anywhere_harms_nothing_and_the_next_one_finishes(campaign: ObjectStore) -> None:
    deaths = 0
    while True:
        try:
            dying = DyingStore(campaign, removals=1)
            collect(dying, keep=2)  # type: ignore[arg-type]
            break
        except Killed:
            deaths += 1
            assert_resumable(campaign, keep=2)
            for version in list_checkpoints(campaign):
                assert verify_checkpoint(campaign, read_checkpoint(campaign, version)) == []
    assert deaths > 20
    assert collect(campaign, keep=2) == 0
    assert list_checkpoints(campaign) == [6, 8]


def test_keeping_nothing_is_refused(campaign: ObjectStore) -> None:
    with pytest.raises(ValueError, match="keep"):
        collect_garbage(campaign, keep=0)
