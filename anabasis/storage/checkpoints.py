"""Checkpoints: manifests that name, by hash, all that is needed to resume at a version."""

from __future__ import annotations

from anabasis.campaign.records import BlobRef, CheckpointManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob, hash_bytes
from anabasis.storage.checkpoint_manifests import list_checkpoints, read_checkpoint
from anabasis.storage.garbage import collect_garbage
from anabasis.storage.records_json import to_json

__all__ = [
    "collect_garbage",
    "list_checkpoints",
    "newest_sound_checkpoint",
    "read_checkpoint",
    "verify_checkpoint",
    "write_checkpoint_manifest",
]


def write_checkpoint_manifest(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """The last step of writing a checkpoint, after its blobs. Replaces a damaged manifest of the same version."""
    store.put(keys.checkpoint(manifest.version), to_json(manifest))


def verify_checkpoint(store: ObjectStore, manifest: CheckpointManifest) -> list[str]:
    """Problems of a checkpoint, in words: reads and hashes everything that it names."""
    found = [_blob_problem(store, ref) for ref in (manifest.parameters, manifest.outer)]
    key = keys.version(manifest.version)
    try:
        if hash_bytes(store.get(key)) != manifest.manifest_hash:
            found.append(f"{key}: is not the commit that this checkpoint was made of")
    except ObjectNotFound:
        found.append(f"{key}: is gone")
    return [problem for problem in found if problem]


def newest_sound_checkpoint(
    store: ObjectStore, *, not_after: int | None = None
) -> tuple[CheckpointManifest | None, list[str]]:
    """The newest checkpoint of which every byte is as promised.

    Args:
        not_after: only checkpoints of this version or older ones.

    Returns:
        (its manifest or None, what was skipped and why).
    """
    skipped: list[str] = []
    for version in reversed(list_checkpoints(store)):
        if not_after is not None and version > not_after:
            continue
        try:
            manifest = read_checkpoint(store, version)
            problems = verify_checkpoint(store, manifest)
        except (CorruptData, ObjectNotFound) as error:
            skipped.append(f"checkpoint {version}: {error}")
            continue
        if not problems:
            return manifest, skipped
        skipped.append(f"checkpoint {version}: {'; '.join(problems)}")
    return None, skipped


def _blob_problem(store: ObjectStore, ref: BlobRef) -> str:
    try:
        get_blob(store, ref)
    except (CorruptData, ObjectNotFound) as error:
        return str(error)
    return ""
