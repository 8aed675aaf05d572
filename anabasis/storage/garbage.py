"""Removes what no kept checkpoint needs. Versions are never removed: they are the campaign's books.

Safe to kill at any line: old checkpoint manifests go first, so no manifest names a blob that is gone; the rest is
found again by the next collection, since it looks at what is there and not at what was planned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from anabasis.campaign.records import CheckpointManifest, VersionManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.checkpoint_manifests import list_checkpoints, read_checkpoint
from anabasis.storage.numbering import numbers_in
from anabasis.storage.records_json import parse_record

GRACE_SECONDS = 900.0
"""Blobs younger than this may belong to a checkpoint or rollback whose manifest is about to be written."""


def collect_garbage(
    store: ObjectStore,
    *,
    keep: int,
    grace_seconds: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.time,
) -> int:
    """Keep the `keep` newest sound-looking checkpoints and all that leads on from the oldest of them.

    Sound-looking: the manifest can be read and its blobs are there in the right size (hashing them all would read
    them all). While there are fewer of these, nothing is removed. Removed are older checkpoints; mail, deltas and
    saved node states of rounds before; and full parameters and outer states that neither a newer checkpoint nor the
    initial version or one since the oldest kept checkpoint names.

    Args:
        store: the campaign's root.
        grace_seconds: blobs younger than this (by the store's times) stay.

    Returns:
        how many objects were removed.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    oldest = _oldest_kept(store, keep=keep)
    if oldest is None:
        return 0
    removed = _remove_checkpoints(store, before=oldest)
    # The round before also: its node states are what a replacement at the kept version starts with.
    for folder, before in (("mail/", oldest), ("deltas/", oldest), ("state/", oldest - 1)):
        removed += _remove_rounds(store, folder, before=before)
    return removed + _remove_blobs(store, oldest=oldest, written_before=clock() - grace_seconds)


def _oldest_kept(store: ObjectStore, *, keep: int) -> int | None:
    kept = 0
    for version in reversed(list_checkpoints(store)):
        manifest = _checkpoint(store, version)
        if manifest is not None and _looks_sound(store, manifest):
            kept += 1
            if kept == keep:
                return version
    return None


def _checkpoint(store: ObjectStore, version: int) -> CheckpointManifest | None:
    try:
        return read_checkpoint(store, version)
    except (CorruptData, ObjectNotFound):
        return None


def _looks_sound(store: ObjectStore, manifest: CheckpointManifest) -> bool:
    for ref in (manifest.parameters, manifest.outer):
        info = store.head(ref.key)
        if info is None or info.size_bytes != ref.size_bytes:
            return False
    return True


def _remove_checkpoints(store: ObjectStore, *, before: int) -> int:
    old = [version for version in list_checkpoints(store) if version < before]
    for version in old:
        store.delete(keys.checkpoint(version))
    return len(old)


def _remove_rounds(store: ObjectStore, folder: str, *, before: int) -> int:
    """Remove `<folder>/<round>/…` of rounds before this one."""
    rounds = re.compile(rf"{folder}(\d+)/.+")
    old = {m[1] for info in store.list(folder) if (m := rounds.fullmatch(info.key)) and int(m[1]) < before}
    return sum(store.delete_prefix(f"{folder}{name}/") for name in sorted(old))


def _remove_blobs(store: ObjectStore, *, oldest: int, written_before: float) -> int:
    # Listed before it is known what is referenced: what is written in between is not even looked at.
    blobs = [info for folder in ("params/", "outer/") for info in store.list(folder)]
    doomed = [info for info in blobs if info.modified_at < written_before]
    if not doomed:
        return 0
    try:
        referenced = _referenced(store, oldest=oldest)
    except (CorruptData, ObjectNotFound):
        return 0  # a version that nobody can read may need any of them
    gone = [info.key for info in doomed if info.key not in referenced]
    for key in gone:
        store.delete(key)
    return len(gone)


def _referenced(store: ObjectStore, *, oldest: int) -> set[str]:
    """Keys of full parameters and outer states that are needed.

    Raises:
        CorruptData, ObjectNotFound: a version cannot be read, so nobody knows what it needs.
    """
    found: set[str] = set()
    for version in list_checkpoints(store):
        manifest = _checkpoint(store, version)
        if manifest is not None:
            found |= {manifest.parameters.key, manifest.outer.key}
    for number in sorted({0, *numbers_in(store, "versions/", at_least=oldest)}):
        key = keys.version(number)
        snapshot = parse_record(VersionManifest, store.get(key), key=key).snapshot
        if snapshot is not None:
            found.add(snapshot.key)
    return found
