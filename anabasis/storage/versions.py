"""A campaign's records in its root: spec, roster, and the versions, of which each is one irrevocable commit."""

from __future__ import annotations

import json

from anabasis.campaign.records import Roster, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.errors import CorruptData, Fenced, InvalidSpec, ObjectNotFound, PreconditionFailed
from anabasis.storage.audit import audit_offsets
from anabasis.storage.base import ObjectStore
from anabasis.storage.numbering import numbers_in
from anabasis.storage.records_json import parse_record, to_json

__all__ = [
    "audit_offsets",
    "commit_version",
    "newest_version",
    "read_roster",
    "read_spec",
    "read_version",
    "try_read_version",
    "write_roster",
    "write_spec",
]

MAX_ROSTER_RACES = 20
"""Tries of a compare-and-swap. The roster has one writer, and perhaps a ghost of it: more is a fault."""


def read_version(store: ObjectStore, version: int) -> VersionManifest:
    """The manifest of a committed version.

    Raises:
        ObjectNotFound: it is not committed. CorruptData: it cannot be read.
    """
    key = keys.version(version)
    manifest = parse_record(VersionManifest, store.get(key), key=key)
    if manifest.version != version:
        raise CorruptData(f"{key}: says that it is version {manifest.version}")
    return manifest


def try_read_version(store: ObjectStore, version: int) -> VersionManifest | None:
    """The manifest, or None while the version is not committed. Raises `CorruptData` as `read_version` does."""
    try:
        return read_version(store, version)
    except ObjectNotFound:
        return None


def newest_version(store: ObjectStore, *, at_least: int = 0) -> int | None:
    """Number of the newest version, or None when there is none from `at_least` on.

    Args:
        at_least: what is known to be committed; it keeps the listing short.
    """
    return max(numbers_in(store, "versions/", at_least=at_least), default=None)


def commit_version(store: ObjectStore, manifest: VersionManifest) -> None:
    """Make a version real. Of many callers with different manifests, one succeeds.

    Raises:
        Fenced: another manifest is committed under this number.
    """
    key, value = keys.version(manifest.version), to_json(manifest)
    try:
        store.put(key, value, if_absent=True)
    except PreconditionFailed:
        if store.get(key) != value:
            raise Fenced(
                f"version {manifest.version} of {manifest.campaign!r} is committed already, by another"
            ) from None


def read_roster(store: ObjectStore) -> Roster | None:
    """The roster, or None before the first. Raises `CorruptData` when it cannot be read."""
    try:
        value = store.get(keys.ROSTER)
    except ObjectNotFound:
        return None
    return parse_record(Roster, value, key=keys.ROSTER)


def write_roster(store: ObjectStore, roster: Roster) -> bool:
    """Replace the roster unless a newer one is there, or another of the same generation. Idempotent.

    Returns:
        whether this roster is now the one in the store.

    Raises:
        Fenced: others replace it all the time.
    """
    value = to_json(roster)
    for _ in range(MAX_ROSTER_RACES):
        try:
            current, etag = store.get_with_etag(keys.ROSTER)
        except ObjectNotFound:
            current, etag = None, None
        if current is not None:
            try:
                present = parse_record(Roster, current, key=keys.ROSTER)
            except CorruptData:
                present = None  # damaged: nobody can use it, so it fences nobody
            if present is not None and present.generation >= roster.generation:
                return present == roster
        try:
            store.put(keys.ROSTER, value, if_absent=etag is None, if_match=etag)
        except PreconditionFailed:
            continue
        return True
    raise Fenced(f"{keys.ROSTER} of {roster.campaign!r} was replaced {MAX_ROSTER_RACES} times by others meanwhile")


def read_spec(store: ObjectStore) -> CampaignSpec:
    """The campaign's spec.

    Raises:
        ObjectNotFound: nothing is prepared here. CorruptData: it cannot be read.
    """
    value = store.get(keys.SPEC)
    try:
        return parse_spec(json.loads(value))
    except (ValueError, InvalidSpec) as error:
        raise CorruptData(f"{keys.SPEC}: {error}; start the campaign again to write it anew") from None


def write_spec(store: ObjectStore, spec: CampaignSpec) -> None:
    """Write or replace the spec."""
    store.put(keys.SPEC, to_json(spec))
