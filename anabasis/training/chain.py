"""The chain hash: names the parameters of a version by everything that led to them."""

from __future__ import annotations

from anabasis.campaign.records import VersionManifest
from anabasis.errors import CorruptData
from anabasis.storage.blobs import hash_bytes


def next_chain(parent: str | None, *, blob_hash: str) -> str:
    """Chain of the version that this blob makes of its parent (None: the initial version)."""
    return hash_bytes(f"{parent or ''}/{blob_hash}".encode())


def check_link(manifest: VersionManifest, *, parent: VersionManifest) -> None:
    """Raise `CorruptData` unless `manifest` follows on `parent`."""
    blob = manifest.delta or manifest.snapshot
    if manifest.version != parent.version + 1 or manifest.parent != parent.version or blob is None:
        raise CorruptData(f"version {manifest.version} does not follow on {parent.version}")
    if manifest.chain != next_chain(parent.chain, blob_hash=blob.hash):
        raise CorruptData(
            f"version {manifest.version}: chain is broken (another history than version {parent.version}'s)"
        )
