"""Checkpoints of the global state, and the way back to one."""

from __future__ import annotations

import time
from collections.abc import Callable

from anabasis.campaign import rounds
from anabasis.campaign.messages import AggregatorIncident, CheckpointResult, RollbackResult
from anabasis.campaign.records import BlobRef, CheckpointManifest, VersionManifest, keys
from anabasis.errors import CorruptData, Fenced, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.checkpoints import (
    collect_garbage,
    newest_sound_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint_manifest,
)
from anabasis.storage.versions import commit_version, newest_version, read_roster, read_spec, read_version
from anabasis.training.aggregator import Aggregator
from anabasis.training.chain import next_chain
from anabasis.training.crashpoints import crash_point
from anabasis.training.recovery import GlobalState

MAX_COMMIT_RACES = 5
"""Tries of a rollback against merges that a second aggregator commits at the same time."""


def write_checkpoint(aggregator: Aggregator, *, version: int, keep: int) -> CheckpointResult:
    """Write all that is needed to resume at the newest version (`version`, unless another aggregator went on).

    Idempotent. Afterwards the `keep` newest checkpoints are kept, and what only older ones need is deleted.
    """
    started = time.monotonic()
    store, state = aggregator.store, aggregator.current()
    key = keys.checkpoint(state.manifest.version)
    written = 0 if _is_sound(store, state.manifest.version) else _write(aggregator, state)
    aggregator.tick("")
    collect_garbage(store, keep=keep)
    crash_point("garbage_collected")
    return CheckpointResult(
        version=state.manifest.version,
        key=key,
        bytes_written=written,
        seconds=time.monotonic() - started,
        incidents=aggregator.take_incidents(),
    )


def _is_sound(store: ObjectStore, version: int) -> bool:
    try:
        return not verify_checkpoint(store, read_checkpoint(store, version))
    except (ObjectNotFound, CorruptData):
        return False


def _write(aggregator: Aggregator, state: GlobalState) -> int:
    store, manifest = aggregator.store, state.manifest
    crash_point("before_checkpoint")
    parameters = _put(store, state.parameters.file(), key_of=keys.parameters)
    crash_point("checkpoint_parameters_written")
    aggregator.tick("")
    outer = _put(store, state.outer.file(), key_of=keys.outer)
    crash_point("checkpoint_outer_written")
    aggregator.tick("")
    checkpoint = CheckpointManifest(
        campaign=manifest.campaign,
        version=manifest.version,
        chain=manifest.chain,
        fingerprint=manifest.fingerprint,
        parameters=parameters,
        outer=outer,
        manifest_hash=hash_bytes(store.get(keys.version(manifest.version))),
        layout=state.parameters.layout,
        offsets=manifest.offsets,
        tokens_total=manifest.tokens_total,
        loss=manifest.loss,
        created_at=aggregator.clock(),
    )
    crash_point("before_checkpoint_manifest")
    write_checkpoint_manifest(store, checkpoint)
    crash_point("after_checkpoint_manifest")
    return parameters.size_bytes + outer.size_bytes


def _put(store: ObjectStore, file: memoryview, *, key_of: Callable[[str], str]) -> BlobRef:
    """Write under the content's hash. Unconditionally: an object that is there may be damaged, or it is the same."""
    digest = hash_bytes(file)
    key = key_of(digest)
    store.put(key, file)
    return BlobRef(key=key, hash=digest, size_bytes=len(file))


def roll_back(aggregator: Aggregator, *, from_version: int, not_after: int) -> RollbackResult:
    """Commit a version with the parameters of the newest sound checkpoint at or before `not_after`.

    Offsets stay where they are: the data of the bad rounds are skipped. Momentum starts anew. Idempotent: a
    rollback that is already committed after `from_version` is the answer.

    Raises:
        Fenced: other aggregators commit faster than this one.
    """
    store = aggregator.store
    for _ in range(MAX_COMMIT_RACES):
        newest = newest_version(store, at_least=from_version)
        if newest is None:
            raise ObjectNotFound(f"{store.url}: no version is committed yet")
        for version in range(from_version + 1, newest + 1):
            done = read_version(store, version)
            if done.kind == "rollback":
                return _rolled_back(aggregator, done)
        parent = read_version(store, newest)
        restored, snapshot, skipped = _sound_snapshot(aggregator, not_after=min(not_after, newest))
        manifest = _rollback_manifest(aggregator, parent=parent, restored=restored, snapshot=snapshot)
        crash_point("before_rollback")
        try:
            commit_version(store, manifest)
        except Fenced:
            continue
        crash_point("after_rollback")
        return _rolled_back(aggregator, manifest, skipped=skipped)
    raise Fenced(f"version {from_version + 1}: other aggregators committed {MAX_COMMIT_RACES} times meanwhile")


def _rolled_back(
    aggregator: Aggregator, manifest: VersionManifest, *, skipped: list[str] | None = None
) -> RollbackResult:
    aggregator.drop()
    fallbacks = [
        AggregatorIncident(
            kind="checkpoint_fallback", text=text[:500], version=manifest.version, noticed_at=aggregator.clock()
        )
        for text in skipped or []
    ]
    return RollbackResult(
        version=manifest.version,
        restored=manifest.rolled_back_to or 0,
        incidents=[*aggregator.take_incidents(), *fallbacks],
    )


def _sound_snapshot(aggregator: Aggregator, *, not_after: int) -> tuple[VersionManifest, BlobRef, list[str]]:
    """(manifest of the version to restore, its full parameters, what was skipped on the way and why)."""
    store = aggregator.store
    aggregator.tick("verifying checkpoints")
    checkpoint, skipped = newest_sound_checkpoint(store, not_after=not_after)
    if checkpoint is not None:
        return read_version(store, checkpoint.version), checkpoint.parameters, skipped
    initial = read_version(store, 0)
    if initial.snapshot is None:
        raise CorruptData("version 0 has no snapshot, and no checkpoint is sound: nothing to roll back to")
    return initial, initial.snapshot, skipped


def _rollback_manifest(
    aggregator: Aggregator, *, parent: VersionManifest, restored: VersionManifest, snapshot: BlobRef
) -> VersionManifest:
    spec = read_spec(aggregator.store)
    return VersionManifest(
        campaign=parent.campaign,
        version=parent.version + 1,
        parent=parent.version,
        kind="rollback",
        rolled_back_to=restored.version,
        chain=next_chain(parent.chain, blob_hash=snapshot.hash),
        fingerprint=restored.fingerprint,
        snapshot=snapshot,
        offsets=parent.offsets,
        plan=rounds.make_plan(
            spec, round_number=parent.merged_rounds, roster=read_roster(aggregator.store), previous=parent.plan
        ),
        loss=restored.loss,
        validation_loss=restored.validation_loss,
        tokens_total=parent.tokens_total,
        merged_rounds=parent.merged_rounds,
        close_reason=f"rolled back to version {restored.version}",
        aggregator=aggregator.identity,
        opened_at=aggregator.clock(),
        committed_at=aggregator.clock(),
    )
