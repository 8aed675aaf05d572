"""Reading checkpoints' manifests."""

from __future__ import annotations

from anabasis.campaign.records import CheckpointManifest, keys
from anabasis.errors import CorruptData
from anabasis.storage.base import ObjectStore
from anabasis.storage.numbering import numbers_in
from anabasis.storage.records_json import parse_record


def list_checkpoints(store: ObjectStore) -> list[int]:
    """Versions that have a checkpoint manifest, sound or not, oldest first."""
    return numbers_in(store, "checkpoints/")


def read_checkpoint(store: ObjectStore, version: int) -> CheckpointManifest:
    """The manifest of a checkpoint; its blobs are not looked at.

    Raises:
        ObjectNotFound: there is none. CorruptData: it cannot be read.
    """
    key = keys.checkpoint(version)
    manifest = parse_record(CheckpointManifest, store.get(key), key=key)
    if manifest.version != version:
        raise CorruptData(f"{key}: says that it is of version {manifest.version}")
    return manifest
