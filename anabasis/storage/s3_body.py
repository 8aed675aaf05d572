"""Memory as the body of a request, without copying it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Reader(io.RawIOBase):
    """A seekable file over a view: botocore reads it once to sign and once to send."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        piece = self._view[self._at : self._at + len(target)]
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def body_of(view: memoryview) -> bytes | bytearray | io.RawIOBase:
    """The object behind the view where that is what botocore sends best, else a reader of it.

    Args:
        view: of bytes.
    """
    whole = view.obj
    if isinstance(whole, (bytes, bytearray)) and len(whole) == len(view):
        return whole
    return _Reader(view)
