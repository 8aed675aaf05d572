"""Shards on the local disk, memory-mapped: downloaded once per machine, shared by all of its trainers."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from anabasis.campaign.records import ShardRef
from anabasis.errors import CorruptData, StoreUnavailable
from anabasis.storage.base import ObjectStore

MAX_CACHE_BYTES = 64 << 30
"""Disk that one machine spends on shards. Samples come from everywhere in the data set, so a cache that does not
hold all of it downloads shards again and again: give such machines a larger disk or a smaller data set."""

CHUNK_BYTES = 1 << 23
"""Downloaded at a time: a few seconds on a slow line, so that progress shows."""

DOWNLOAD_ATTEMPTS = 3
"""A download whose hash is wrong is repeated: corruption in transit passes, at rest it does not."""

ABANDONED_AFTER_SECONDS = 3_600.0
"""A partial download that has not grown for so long belongs to a process that is gone."""


class ShardCache:
    """A folder of whole, verified shards named by their hashes; the least recently used go when it is full.

    Safe for any number of processes: files appear by rename, and a mapped file stays readable when it is removed.
    """

    def __init__(self, store: ObjectStore, folder: Path, *, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._store = store
        self._folder = folder
        self._max_bytes = max_bytes
        self._open: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._open_bytes = 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def tokens(
        self, shard: ShardRef, *, dtype: np.dtype[Any], on_progress: Callable[[], None] | None = None
    ) -> NDArray[Any]:
        """All tokens of a shard, mapped.

        Raises:
            CorruptData: the store's copy is not what its hash says.
            StorageError: from the store; StoreUnavailable when this disk is full.
        """
        with self._lock:
            mapped = self._open.get(shard.hash)
            if mapped is not None:
                self._open.move_to_end(shard.hash)
                return mapped
            path = self._folder / f"{shard.hash}.bin"
            if not _is_sound(path, shard):
                self._download(shard, path, on_progress=on_progress)
            with suppress(OSError):
                os.utime(path)  # "used now", for the eviction of any process
            mapped = np.memmap(path, dtype=dtype, mode="r")
            self._remember(shard, mapped)
            return mapped

    def _remember(self, shard: ShardRef, mapped: NDArray[Any]) -> None:
        self._open[shard.hash] = mapped
        self._open_bytes += mapped.nbytes
        while self._open_bytes > self._max_bytes and len(self._open) > 1:
            _, oldest = self._open.popitem(last=False)
            self._open_bytes -= oldest.nbytes

    def _download(self, shard: ShardRef, path: Path, *, on_progress: Callable[[], None] | None) -> None:
        self._make_room(shard.size_bytes)
        for _ in range(DOWNLOAD_ATTEMPTS):
            descriptor, name = tempfile.mkstemp(prefix=f"{shard.hash[:16]}-", suffix=".part", dir=self._folder)
            partial = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    found = self._copy(shard, file, on_progress=on_progress)
                if found == shard.hash:
                    partial.replace(path)
                    return
            except OSError as error:
                raise StoreUnavailable(f"shard cache {self._folder}: {error.strerror or error}") from error
            finally:
                partial.unlink(missing_ok=True)
        raise CorruptData(f"{shard.key}: its bytes in the store do not have the hash {shard.hash[:12]}…")

    def _copy(self, shard: ShardRef, file: Any, *, on_progress: Callable[[], None] | None) -> str:
        hasher = blake3()
        for start in range(0, shard.size_bytes, CHUNK_BYTES):
            chunk = self._store.get(shard.key, start=start, length=min(CHUNK_BYTES, shard.size_bytes - start))
            hasher.update(chunk)
            file.write(chunk)
            if on_progress:
                on_progress()
        return hasher.hexdigest()

    def _make_room(self, size_bytes: int) -> None:
        """Remove least recently used shards, and what dead processes left, until so many bytes fit."""
        entries: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process was faster
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        used = sum(size for _, size, _ in entries)
        now = max((modified for modified, _, _ in entries), default=0.0)
        for modified, size, path in sorted(entries):
            abandoned = path.suffix == ".part" and now - modified > ABANDONED_AFTER_SECONDS
            if abandoned or (used + size_bytes > self._max_bytes and path.suffix == ".bin"):
                path.unlink(missing_ok=True)
                used -= size


def _is_sound(path: Path, shard: ShardRef) -> bool:
    """Whether a good copy is there: read once per process, at memory speed, since a crashed machine's files can be
    of the right size and full of zeros."""
    try:
        if path.stat().st_size != shard.size_bytes:
            return False
        return blake3().update_mmap(path).hexdigest() == shard.hash
    except OSError:
        return False
