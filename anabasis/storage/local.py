"""A folder as an object store: for one machine, and for machines that share a file system with working locks.

A value is written to a temporary file beside its place, forced to the disk, and then linked or renamed into place
while the *folder* is locked (`flock` on the folder itself: nothing to clean up, and the lock of a killed process is
gone with it). Readers take no locks: they see the old file or the new one.
"""

# Not pathlib: descriptors, and listings of thousands of files several times a second.
# ruff: noqa: PTH100, PTH102, PTH106, PTH108, PTH112, PTH116, PTH119, PTH120

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anabasis.errors import ObjectNotFound, PreconditionFailed, StoreDenied, StoreUnavailable
from anabasis.storage.base import RESERVED, ObjectInfo, check_key, check_prefix
from anabasis.storage.disk_errors import as_storage_error

LOCK_SECONDS = 10.0
"""A lock is held for microseconds; whoever has it longer is frozen, and the caller should hear of it."""

LOCK_POLL_SECONDS = 0.002
"""`flock` has no timeout of its own. Only contended locks are polled."""

TEMPORARY_SECONDS = 900.0
"""A temporary file that has not grown for so long belongs to a process that was killed."""

MAX_RACES = 5
"""Tries of a write whose folder is removed (`delete_prefix`) between making and using it."""

_TEMPORARY = f"{RESERVED}new-"
_PIECE_BYTES = 64 << 20


class LocalStore:
    """A store in a folder, which is made with the first write.

    Etags are made of a file's identity, length and modification time (nanoseconds, strictly growing under the
    lock), so a listing needs not read the files.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = os.path.abspath(root)  # keeps symbolic links: they may be moved to another disk

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    def child(self, prefix: str) -> LocalStore:
        return LocalStore(self._path(prefix.rstrip("/")))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._opened(key) as fd:
            if start == 0 and length is None:
                return _read_all(fd)
            return _read_part(fd, start=start, length=length)

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        with self._opened(key) as fd:
            done = 0
            while done < len(buffer) and (count := os.preadv(fd, [buffer[done:]], start + done)):
                done += count
            return done

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._opened(key) as fd:
            return _read_all(fd), _etag(os.fstat(fd))

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise as_storage_error(error, path) from error
        return _info(key, found) if stat.S_ISREG(found.st_mode) else None

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        path = self._path(key)
        folder, name = os.path.split(path)
        for _ in range(MAX_RACES):
            try:
                temporary = self._write_temporary(folder, value)
                try:
                    return _put_in_place(folder, temporary, name=name, if_absent=if_absent, if_match=if_match)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary)
                    raise
            except FileNotFoundError:
                continue  # the folder, empty then, has been removed meanwhile
            except OSError as error:
                raise as_storage_error(error, path, size_bytes=memoryview(value).nbytes) from error
        raise StoreUnavailable(f"{folder} was removed {MAX_RACES} times while {name} was written; try again")

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectInfo]:
        check_prefix(prefix)
        within, _, _ = prefix.rpartition("/")
        found: list[ObjectInfo] = []
        try:
            self._scan(within, prefix=prefix, start_after=start_after, found=found)
        except OSError as error:
            raise as_storage_error(error, self._root) from error
        found.sort(key=lambda info: info.key)
        return found

    def delete(self, key: str) -> None:
        path = self._path(key)
        folder, name = os.path.split(path)
        try:
            with _locked(folder) as fd:
                os.unlink(name, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise as_storage_error(error, path) from error

    def delete_prefix(self, prefix: str) -> int:
        if not prefix:
            raise StoreDenied("delete_prefix needs a prefix; an empty one would remove the whole store")
        doomed = self.list(prefix)
        for info in doomed:
            self.delete(info.key)
        folders = {os.path.dirname(info.key) for info in doomed}
        if prefix.endswith("/"):
            folders.add(prefix.rstrip("/"))
        for folder in sorted(folders, reverse=True):
            self._remove_empty(folder, prefix=prefix)
        return len(doomed)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectNotFound(f"{key}: no such object in {self._root}") from None
        except OSError as error:
            raise as_storage_error(error, path) from error

    def _write_temporary(self, folder: str, value: bytes | bytearray | memoryview) -> str:
        """Path of a complete file in the folder, on the disk. The folder is made if need be."""
        temporary = f"{folder}/{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            _make_folder(folder)
            fd = os.open(temporary, flags, 0o666)
        try:
            _write_all(fd, memoryview(value).cast("B"))
            now = time.time_ns()  # files' own times are as coarse as the kernel's tick
            os.utime(fd, ns=(now, now))
            os.fsync(fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return temporary

    def _scan(self, within: str, *, prefix: str, start_after: str, found: list[ObjectInfo]) -> None:
        """Add the objects of one folder and, as far as they can match, of those below."""
        base = f"{within}/" if within else ""
        try:
            entries = os.scandir(f"{self._root}/{base}")
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                key = base + entry.name
                if entry.name.startswith(RESERVED):
                    _remove_if_abandoned(entry)
                elif entry.is_dir():
                    inside = f"{key}/"
                    matches = inside.startswith(prefix) or prefix.startswith(inside)
                    if matches and (inside >= start_after or start_after.startswith(inside)):
                        self._scan(key, prefix=prefix, start_after=start_after, found=found)
                elif key.startswith(prefix) and key > start_after:
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append(_info(key, entry.stat()))

    def _remove_empty(self, folder: str, *, prefix: str) -> None:
        """Remove a folder and those above it that lie under the prefix, as far as they are empty."""
        while folder and f"{folder}/".startswith(prefix):
            try:
                path = f"{self._root}/{folder}"
                with _locked(path):
                    os.rmdir(path)
            except OSError:
                return  # not empty, or gone: an empty folder is invisible, so this is only tidiness
            folder = os.path.dirname(folder)


def _put_in_place(folder: str, temporary: str, *, name: str, if_absent: bool, if_match: str | None) -> str:
    """Give a complete file its name, and make that durable; returns the etag.

    Raises:
        PreconditionFailed: a condition does not hold; the temporary file is then still there.
    """
    source = os.path.basename(temporary)
    with _locked(folder) as fd:
        current = _stat_in(fd, name)
        if current is not None and stat.S_ISDIR(current.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", name)
        if if_absent and current is not None:
            raise PreconditionFailed(f"{name}: exists already in {folder}")
        if if_match is not None and (current is None or _etag(current) != if_match):
            raise PreconditionFailed(f"{name}: was changed in {folder} since it was read")
        mine = os.stat(source, dir_fd=fd)
        if current is not None and current.st_mtime_ns >= mine.st_mtime_ns:  # the clock stood still, or was set back
            later = current.st_mtime_ns + 1
            os.utime(source, ns=(later, later), dir_fd=fd)
            mine = os.stat(source, dir_fd=fd)
        if if_absent:
            _link(fd, source, name)
        else:
            os.rename(source, name, src_dir_fd=fd, dst_dir_fd=fd)
        etag = _etag(mine)
        os.fsync(fd)
    return etag


def _link(fd: int, source: str, name: str) -> None:
    """Rename, but never over another file: not even over one of a program that knows nothing of our locks."""
    try:
        os.link(source, name, src_dir_fd=fd, dst_dir_fd=fd)
    except FileExistsError:
        raise PreconditionFailed(f"{name}: exists already") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        os.rename(source, name, src_dir_fd=fd, dst_dir_fd=fd)  # a file system without hard links; we hold the lock
        return
    os.unlink(source, dir_fd=fd)


@contextmanager
def _locked(folder: str) -> Iterator[int]:
    """Hold the folder's lock, against threads and processes; gives the folder's descriptor."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(fd, folder):
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{folder} has been locked for {LOCK_SECONDS:g} s; is a process frozen in it?")
            time.sleep(LOCK_POLL_SECONDS)
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int, folder: str) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ENOTSUP, errno.ENOLCK):
            raise StoreDenied(f"{folder}: its file system cannot lock folders; use a local disk, or S3") from error
        raise
    return True


def _make_folder(folder: str) -> None:
    """Make a folder and those above it, durably."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", folder) from None
        return
    except FileNotFoundError:
        _make_folder(os.path.dirname(folder))
        _make_folder(folder)
        return
    fd = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if entry.name.startswith(_TEMPORARY) and time.time() - entry.stat().st_mtime > TEMPORARY_SECONDS:
            os.unlink(entry.path)


def _stat_in(fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd)
    except FileNotFoundError:
        return None


def _etag(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=found.st_size, etag=_etag(found), modified_at=found.st_mtime)


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.write(fd, view[done : done + _PIECE_BYTES])


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
        return file.read()


def _read_part(fd: int, *, start: int, length: int | None) -> bytes:
    end = os.fstat(fd).st_size if length is None else start + length
    pieces: list[bytes] = []
    while start < end:
        piece = os.pread(fd, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
