"""The object store's contract: what a campaign may rely on, whatever holds the bytes.

Keys are `/`-separated relative paths without `.` or `..` parts. Values are immutable once written, except
for the few that are replaced by compare-and-swap (`roster.json`, the model registry). All methods are
synchronous, thread-safe, bounded in time (the backend's own timeouts and a few retries), and raise only
`anabasis.errors.StorageError` subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object.

    Attributes:
        key: relative to the store it was asked of.
        size_bytes: length of the value.
        etag: opaque; equal etags mean equal content; usable in `put(..., if_match=…)`.
        modified_at: seconds since the epoch, by the store's clock.
    """

    key: str
    size_bytes: int
    etag: str
    modified_at: float


class ObjectStore(Protocol):
    """A flat map from keys to bytes with conditional writes.

    Strong consistency is assumed: a `get`, `head` or `list` that starts after a `put` returned sees it.
    """

    @property
    def url(self) -> str:
        """Where this store is; `open_store(store.url)` opens it again (without secrets)."""
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The value, or the part of it from byte `start` of `length` bytes. Raises `ObjectNotFound`."""
        ...

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """The value and its etag, read atomically. Raises `ObjectNotFound`."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """What is known of the object, or None when there is none."""
        ...

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        """Write atomically (readers see all or nothing) and durably; returns the new etag.

        With `if_absent`, raises `PreconditionFailed` when the key exists: of many callers, one wins.
        With `if_match`, raises `PreconditionFailed` unless the current etag is that one.
        A retried conditional write that finds *its own bytes* already there counts as won.
        """
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectInfo]:
        """All objects whose key starts with `prefix` and sorts after `start_after`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; absent is success."""
        ...

    def delete_prefix(self, prefix: str) -> int:
        """Remove everything under a prefix; returns how many objects. Refuses an empty prefix."""
        ...

    def child(self, prefix: str) -> ObjectStore:
        """The same store seen from below `prefix` (its keys are relative to it)."""
        ...
