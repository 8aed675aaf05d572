"""The object store's contract: what a campaign may rely on, whatever holds the bytes.

Keys are `/`-separated relative paths without `.` or `..` parts. Values are immutable once written, except
for the few that are replaced by compare-and-swap (`roster.json`, the model registry). All methods are
synchronous, thread-safe, bounded in time (the backend's own timeouts and a few retries), and raise only
`anabasis.errors.StorageError` subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabasis.errors import StoreDenied

MAX_KEY_BYTES = 1_024
"""Of a key with all its prefixes: S3's limit."""

MAX_PART_BYTES = 200
"""Of one part of a key: file names end at 255 bytes, and temporary names are longer than final ones."""

RESERVED = ".anabasis-"
"""Parts of keys do not start with this: a store's own bookkeeping does."""


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
        """The value, or the part of it from byte `start` of `length` bytes, as far as there is any.

        Raises `ObjectNotFound`.
        """
        ...

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        """Fill a writable buffer of bytes with the value from byte `start` on; returns how many there were.

        Raises `ObjectNotFound`; the buffer's contents are then undefined.
        """
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


def check_key(key: str) -> str:
    """The key itself.

    Raises:
        StoreDenied: it is empty, absolute, too long, or has parts that no store may see (`..`, control characters).
    """
    problem = _problem(key)
    if problem:
        raise StoreDenied(f"key {key[:120]!r} {problem}")
    return key


def check_prefix(prefix: str) -> str:
    """The same for a prefix: it may be empty, and its last part may be cut anywhere."""
    whole, _, last = prefix.rpartition("/")
    if last in {"", ".", ".."}:
        last = "x"  # nothing, or the beginning of a longer part
    check_key(f"{whole}/{last}" if "/" in prefix else last)
    return prefix


def _problem(key: str) -> str:
    parts = key.split("/")
    if not key or "" in parts:
        return "must have parts that are not empty, with single slashes between them"
    if any(part in {".", ".."} or part.startswith(RESERVED) for part in parts):
        return f"must not have parts like '.', '..' or '{RESERVED}…'"
    if any(ord(letter) < 32 or letter in "\\\x7f" for letter in key):
        return "must not have control characters or backslashes"
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        return "must be valid Unicode"
    if len(key.encode()) > MAX_KEY_BYTES or max(map(len, encoded)) > MAX_PART_BYTES:
        return f"must be shorter: at most {MAX_PART_BYTES} bytes a part, {MAX_KEY_BYTES} in all"
    return ""
