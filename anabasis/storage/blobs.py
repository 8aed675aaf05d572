"""Content-addressed objects: written once, named by their BLAKE3, verified whenever they are read."""

from __future__ import annotations

from blake3 import blake3

from anabasis.campaign.records import BlobRef
from anabasis.errors import CorruptData, PreconditionFailed
from anabasis.storage.base import ObjectStore

PARALLEL_BYTES = 8 << 20
"""From this size on, hashing on all cores saves more than starting the threads costs."""


def hash_bytes(value: bytes | bytearray | memoryview) -> str:
    """Hex BLAKE3 (256 bit)."""
    threads = blake3.AUTO if memoryview(value).nbytes >= PARALLEL_BYTES else 1
    return blake3(value, max_threads=threads).hexdigest()


def put_blob(store: ObjectStore, key: str, value: bytes | bytearray | memoryview) -> BlobRef:
    """Write unless it is there, under a key that holds the content's hash. Whole or not at all, so it may be retried.

    An object of another length under this key is a damaged one and is replaced.
    """
    size = memoryview(value).nbytes
    try:
        store.put(key, value, if_absent=True)
    except PreconditionFailed:
        present = store.head(key)
        if present is None or present.size_bytes != size:
            store.put(key, value)
    return BlobRef(key=key, hash=hash_bytes(value), size_bytes=size)


def get_blob(store: ObjectStore, ref: BlobRef) -> bytes:
    """The bytes.

    Raises:
        ObjectNotFound: it is gone. CorruptData: it is not what the reference promises.
    """
    value = store.get(ref.key)
    if len(value) != ref.size_bytes:
        raise CorruptData(f"{ref.key}: {len(value)} bytes, {ref.size_bytes} promised")
    found = hash_bytes(value)
    if found != ref.hash:
        raise CorruptData(f"{ref.key}: its BLAKE3 is {found[:16]}…, {ref.hash[:16]}… promised")
    return value
