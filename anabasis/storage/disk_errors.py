"""What an error of the operating system means to someone who uses a folder as a store, and the mend."""

from __future__ import annotations

import errno

from anabasis.errors import StorageError, StoreDenied, StoreUnavailable

_FULL = {
    errno.ENOSPC: "its disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space or raise it",
    errno.EFBIG: "a file of this size is not allowed there; raise the limit (ulimit -f)",
}
_DENIED = {
    errno.EACCES: "is not accessible to this user; change its permissions",
    errno.EPERM: "is not accessible to this user; change its permissions",
    errno.EROFS: "is on a read-only file system; mount it writable or use another folder",
    errno.ENOTDIR: "lies below a file, which cannot hold it; use another folder",
    errno.EISDIR: "is a folder, so it cannot be an object; use another key",
    errno.ENOTEMPTY: "is a folder, so it cannot be an object; use another key",
    errno.EEXIST: "is in the way; use another folder",
    errno.ENAMETOOLONG: "is too long a path; use a folder nearer to the root",
    errno.ELOOP: "leads in circles through symbolic links; mend them",
}


def as_storage_error(error: OSError, path: str, *, size_bytes: int | None = None) -> StorageError:
    """`StoreDenied` where trying again cannot help, else `StoreUnavailable`: disks get space, mounts come back."""
    number = error.errno or 0
    if number in _DENIED:
        return StoreDenied(f"{path} {_DENIED[number]}")
    if number in _FULL:
        size = "" if size_bytes is None else f" ({size_bytes} bytes)"
        return StoreUnavailable(f"{path}{size} cannot be written: {_FULL[number]}")
    return StoreUnavailable(f"{path}: {error.strerror or error}; look at its disk or mount")
