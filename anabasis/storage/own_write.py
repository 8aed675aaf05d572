"""Telling one's own write from another's when its answer was lost."""

from __future__ import annotations

from anabasis.errors import ObjectNotFound
from anabasis.storage.base import ObjectStore


def etag_if_mine(store: ObjectStore, key: str, value: bytes | bytearray | memoryview) -> str | None:
    """Etag of the object if it holds exactly these bytes, else None."""
    info = store.head(key)
    if info is None or info.size_bytes != memoryview(value).nbytes:
        return None
    try:
        present, etag = store.get_with_etag(key)
    except ObjectNotFound:
        return None
    return etag if memoryview(present) == memoryview(value).cast("B") else None
