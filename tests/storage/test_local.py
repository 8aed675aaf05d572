"""What is particular to folders: full disks, frozen writers, leftovers, paths that are in the way."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from anabasis.errors import PreconditionFailed, StoreDenied, StoreUnavailable
from anabasis.storage import local, open_store
from anabasis.storage.base import ObjectStore
from tests.support.flaky import small_disk

PLAIN: dict[str, Any] = {}
CREATE: dict[str, Any] = {"if_absent": True}
SWAP: dict[str, Any] = {"if_match": "0-0-0"}


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_full_disk_is_an_outage_that_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=1 << 20) as disk:
        store = open_store(str(disk))
        etag = store.put("small", b"kept")
        for options in (PLAIN, CREATE):
            with pytest.raises(StoreUnavailable, match=r"2097152 bytes.*disk is full.*free some space"):
                store.put("big", bytes(2 << 20), **options)
        with pytest.raises(StoreUnavailable):
            store.put("small", bytes(2 << 20), if_match=etag)
        assert files_below(disk) == ["small"]
        assert store.get_with_etag("small") == (b"kept", etag)
        store.put("fits", bytes(500_000))
        store.delete("fits")
        store.put("fits again", bytes(900_000))


def test_a_new_folder_on_a_full_disk_is_the_same_outage(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=1 << 16) as disk:
        store = open_store(str(disk))
        store.put("fill", bytes(1 << 15))
        with pytest.raises(StoreUnavailable, match="disk is full"):
            store.put("new/folder/k", bytes(1 << 16))


def test_a_file_in_the_way_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = open_store(str(tmp_path / "file" / "store"))
    with pytest.raises(StoreDenied, match="below a file"):
        store.put("k", b"x")
    assert store.head("k") is None
    assert store.list() == []
    store.delete("k")
    below = open_store(str(tmp_path))
    with pytest.raises(StoreDenied):
        below.put("file/k", b"x")


def test_an_object_cannot_be_where_a_folder_is(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a/b", b"x")
    for options in (PLAIN, CREATE, SWAP):
        with pytest.raises(StoreDenied, match="is a folder"):
            store.put("a", b"y", **options)
    store.delete("a")
    assert files_below(tmp_path) == ["a/b"]


def test_reading_creates_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    assert store.list("versions/") == []
    assert store.head("k") is None
    store.delete("k")
    assert store.delete_prefix("mail/") == 0
    with pytest.raises(PreconditionFailed):
        store.put("k", b"x", if_match="x")
    assert files_below(tmp_path) == []


def test_what_killed_writers_leave_is_invisible_and_goes_away(folder_store: ObjectStore, tmp_path: Path) -> None:
    folder_store.put("mail/k", b"x")
    old, young = (tmp_path / "store" / "mail" / f".anabasis-new-{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half of a val")
    past = time.time() - local.TEMPORARY_SECONDS - 1
    os.utime(old, (past, past))
    assert [info.key for info in folder_store.list()] == ["mail/k"]
    assert not old.exists()
    assert young.exists(), "its writer may be at work"
    os.utime(young, (past, past))
    folder_store.delete_prefix("mail/")
    assert list((tmp_path / "store").iterdir()) == [], "empty folders go too"


def test_a_frozen_holder_of_the_lock_is_an_outage(
    folder_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_store.put("a/k", b"x")
    monkeypatch.setattr(local, "LOCK_SECONDS", 0.05)
    folder = os.open(tmp_path / "store" / "a", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(StoreUnavailable, match=r"locked.*frozen"):
        folder_store.put("a/k", b"y")
    with pytest.raises(StoreUnavailable, match="locked"):
        folder_store.delete("a/k")
    assert folder_store.get("a/k") == b"x", "readers are not in its way"
    folder_store.put("b/k", b"other folders neither")
    os.close(folder)
    folder_store.put("a/k", b"y")
    assert files_below(tmp_path / "store") == ["a/k", "b/k"]


def test_a_file_system_without_locks_is_refused(folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")  # what NFS says of a folder

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreDenied, match="cannot lock folders"):
        folder_store.put("k", b"x")


def test_a_file_system_without_hard_links_still_creates_only_once(
    folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    folder_store.put("k", b"x", if_absent=True)
    with pytest.raises(PreconditionFailed):
        folder_store.put("k", b"y", if_absent=True)
    assert folder_store.get("k") == b"x"


def test_etags_grow_even_when_the_clock_stands_still(
    folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of one size, swapped in the same nanosecond: inode numbers are reused, so only the time tells."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    etags = [folder_store.put("k", f"{number:03d}".encode()) for number in range(100)]
    assert len(set(etags)) == 100
    with pytest.raises(PreconditionFailed):
        folder_store.put("k", b"zzz", if_match=etags[-2])


def test_a_folder_removed_under_a_writer_is_made_again(
    folder_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = local._put_in_place, []  # pyright: ignore[reportPrivateUsage]

    def meanwhile(folder: str, temporary: str, **options: object) -> str:
        if not removed:
            removed.append(folder)
            Path(temporary).unlink()
            Path(folder).rmdir()
        return real(folder, temporary, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "_put_in_place", meanwhile)
    folder_store.put("mail/000001/k", b"x", if_absent=True)
    assert removed
    assert folder_store.get("mail/000001/k") == b"x"


def test_an_io_error_is_an_outage(folder_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnavailable, match=r"Input/output error.*disk or mount"):
        folder_store.put("k", b"x")
