"""Large objects into reused memory, piece by piece.

A fresh allocation of a hundred megabytes costs more in page faults than reading the bytes does; so buffers are
kept from round to round. What exceeds the memory allowance lies in unlinked temporary files.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

from anabasis.errors import CorruptData
from anabasis.storage.base import ObjectStore
from anabasis.training.pages import allocate
from anabasis.training.tensorfile import as_bytes

PIECES = 8
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 1 << 20, 8 << 20
"""Per request: an eighth of the object within these limits. Large enough to hide a store's latency, small enough to
show progress on a slow link and to cost little memory beside the object itself."""

SLACK_BYTES = 16 << 10
"""Contributions of one model differ by the digits in their headers; a buffer must do for all of them."""


@dataclass(slots=True)
class _Buffer:
    memory: memoryview
    in_memory: bool
    busy: bool = False


class Shelf:
    """Buffers that are handed out, and all taken back at the end of a round.

    Args:
        memory_bytes: of all buffers in memory; further ones are files, unlinked as soon as they are opened.
    """

    def __init__(self, *, memory_bytes: int) -> None:
        self._allowance = memory_bytes
        self._buffers: list[_Buffer] = []
        self._guard = threading.Lock()

    def take(self, size_bytes: int) -> memoryview:
        """A writable buffer of exactly this length, with undefined contents. Thread-safe."""
        with self._guard:
            return self._buffer(size_bytes).memory[:size_bytes]

    def _buffer(self, size_bytes: int) -> _Buffer:
        for buffer in self._buffers:
            if not buffer.busy and len(buffer.memory) >= size_bytes:
                buffer.busy = True
                return buffer
        length = -(-(size_bytes + SLACK_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        used = sum(len(buffer.memory) for buffer in self._buffers if buffer.in_memory)
        if used + length <= self._allowance:
            buffer = _Buffer(as_bytes(allocate(length)), in_memory=True, busy=True)
        else:
            with tempfile.TemporaryFile(prefix="anabasis-mail-") as file:
                file.truncate(length)
                buffer = _Buffer(memoryview(mmap.mmap(file.fileno(), length)), in_memory=False, busy=True)
        self._buffers.append(buffer)
        return buffer

    def take_back(self) -> None:
        """All buffers may be overwritten from here on."""
        for buffer in self._buffers:
            buffer.busy = False


def fetch(
    store: ObjectStore, key: str, *, size_bytes: int, shelf: Shelf, tick: Callable[[], None] = lambda: None
) -> memoryview:
    """The object's bytes in a buffer of the shelf; `tick` is called after each piece.

    Raises:
        ObjectNotFound: there is none. CorruptData: it is not as long as promised.
    """
    buffer = shelf.take(size_bytes)
    step = min(max(MIN_PIECE_BYTES, -(-size_bytes // PIECES)), MAX_PIECE_BYTES)
    for start in range(0, max(size_bytes, 1), step):
        length = min(step, size_bytes - start)
        found = store.get_into(key, buffer[start : start + length], start=start)
        if found != length:
            raise CorruptData(f"{key}: {found} bytes at {start}, {length} promised")
        tick()
    return buffer
