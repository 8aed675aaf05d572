"""The object store's contract, on a folder and on a real S3 server."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from anabasis.errors import ObjectNotFound, PreconditionFailed, StoreDenied
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from tests.support.wait import wait_until_sync

fork = multiprocessing.get_context("fork")
"""Children import nothing: twenty of them start at once. Each opens the store anew."""


def keys_of(store: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def in_processes(count: int, target: Callable[..., None], *arguments: object) -> None:
    children = [fork.Process(target=target, args=(number, *arguments)) for number in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * count


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 100], ids=len)
def test_what_is_put_is_got(store: ObjectStore, value: bytes) -> None:
    etag = store.put("a/b.bin", value)
    assert store.get("a/b.bin") == value
    assert store.get_with_etag("a/b.bin") == (value, etag)
    info = store.head("a/b.bin")
    assert info is not None
    assert (info.key, info.size_bytes, info.etag) == ("a/b.bin", len(value), etag)
    assert store.list() == [info]


@pytest.mark.parametrize(
    "kind", [bytearray, memoryview, lambda value: memoryview(bytearray(b"--" + value + b"--"))[2:-2]]
)
def test_memory_of_any_kind_is_stored(store: ObjectStore, kind: Callable[[bytes], bytes]) -> None:
    store.put("k", kind(b"some bytes"))
    assert store.get("k") == b"some bytes"


def test_views_of_other_element_types_are_stored_as_their_bytes(store: ObjectStore) -> None:
    store.put("k", memoryview(b"12345678").cast("I"))
    assert store.get("k") == b"12345678"


def test_32_megabytes(store: ObjectStore) -> None:
    value = random.Random(1).randbytes(32 << 20)
    store.put("big", memoryview(value), if_absent=True)
    assert store.get("big") == value
    assert store.get("big", start=20 << 20, length=1_000) == value[20 << 20 : (20 << 20) + 1_000]


def test_ranges(store: ObjectStore) -> None:
    store.put("k", b"0123456789")
    assert store.get("k", start=3, length=4) == b"3456"
    assert store.get("k", start=7) == b"789"
    assert store.get("k", start=7, length=100) == b"789"
    assert store.get("k", start=0, length=10) == b"0123456789"
    for start, length in ((10, None), (10, 5), (99, 1), (3, 0)):
        assert store.get("k", start=start, length=length) == b""
    store.put("empty", b"")
    assert store.get("empty", start=0, length=5) == b""
    for length in (None, 0, 5):
        with pytest.raises(ObjectNotFound):
            store.get("none", start=1, length=length)


def test_what_is_not_there(store: ObjectStore) -> None:
    assert store.head("none") is None
    assert store.list() == []
    for read in (store.get, store.get_with_etag):
        with pytest.raises(ObjectNotFound, match="none"):
            read("none")
    store.put("a/b", b"x")
    assert store.head("a") is None
    with pytest.raises(ObjectNotFound):
        store.get("a")
    with pytest.raises(ObjectNotFound):
        store.get("a/b/c")
    assert store.head("a/b/c") is None


def test_etags_tell_contents_apart(store: ObjectStore) -> None:
    etags = [store.put("k", value) for value in (b"1", b"2", b"3")]
    assert len(set(etags)) == 3
    assert store.put("k", b"4") not in etags


# --- conditions -------------------------------------------------------------------------------------------


def test_create_if_absent(store: ObjectStore) -> None:
    store.put("k", b"1", if_absent=True)
    with pytest.raises(PreconditionFailed, match="k"):
        store.put("k", b"2", if_absent=True)
    assert store.get("k") == b"1"
    store.delete("k")
    store.put("k", b"3", if_absent=True)
    assert store.get("k") == b"3"


def test_compare_and_swap(store: ObjectStore) -> None:
    first = store.put("k", b"1")
    second = store.put("k", b"2", if_match=first)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"3", if_match=first)
    assert store.get_with_etag("k") == (b"2", second)
    listed = store.list()[0].etag
    store.put("k", b"4", if_match=listed)
    store.delete("k")
    with pytest.raises(PreconditionFailed):
        store.put("k", b"5", if_match=listed)
    assert store.head("k") is None


def _create(number: int, url: str) -> None:
    store = open_store(url)
    wait_until_sync(lambda: store.head("go"), seconds=30)
    try:
        store.put("prize", f"{number}".encode(), if_absent=True)
    except PreconditionFailed:
        return
    store.put(f"winners/{number}", b"")


def test_of_twenty_processes_that_create_one_wins(store: ObjectStore, store_url: str) -> None:
    children = [fork.Process(target=_create, args=(number, store_url)) for number in range(20)]
    for child in children:
        child.start()
    store.put("go", b"")
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 20
    winners = keys_of(store, "winners/")
    assert winners == [f"winners/{store.get('prize').decode()}"]


def test_of_twenty_threads_that_create_one_wins_every_time(store: ObjectStore) -> None:
    def create(race: int, number: int) -> int | None:
        try:
            store.put(f"prize/{race}", f"{number}".encode(), if_absent=True)
        except PreconditionFailed:
            return None
        return number

    with ThreadPoolExecutor(20) as pool:
        for race in range(5):
            won = [n for n in pool.map(lambda number, race=race: create(race, number), range(20)) if n is not None]
            assert won == [int(store.get(f"prize/{race}"))]


def _count(_: int, url: str, times: int) -> None:
    store = open_store(url)
    for _ in range(times):
        while True:
            value, etag = store.get_with_etag("count")
            try:
                store.put("count", str(int(value) + 1).encode(), if_match=etag)
                break
            except PreconditionFailed:
                continue


def test_concurrent_increments_are_all_counted(store: ObjectStore, store_url: str) -> None:
    store.put("count", b"0")
    in_processes(4, _count, store_url, 15)
    assert store.get("count") == b"60"


def _swap_and_create(number: int, url: str) -> None:
    """Deletes and creates while others swap: what is swapped in must never replace what was created."""
    store = open_store(url)
    for turn in range(20):
        try:
            if number == 0:
                store.delete("k")
                store.put("k", f"created {turn}".encode(), if_absent=True)
            else:
                value, etag = store.get_with_etag("k")
                store.put("k", value.split(b",")[0] + f", {number}.{turn}".encode(), if_match=etag)
        except (PreconditionFailed, ObjectNotFound):
            continue


def test_swapping_never_brings_back_what_was_deleted(store: ObjectStore, store_url: str) -> None:
    in_processes(4, _swap_and_create, store_url)
    assert store.get("k").startswith(b"created 19")


# --- killed writers ---------------------------------------------------------------------------------------

SIZE = 8 << 20


def _write_for_ever(_: int, url: str, if_absent: bool) -> None:
    store = open_store(url)
    store.put("started", b"")
    for turn in range(10_000):
        if if_absent:
            with suppress(PreconditionFailed):  # a server may finish what the writer before this one began
                store.put(f"value/{turn:05d}", bytes([turn % 256]) * SIZE, if_absent=True)
            store.delete(f"value/{turn - 1:05d}") if turn else None
        else:
            store.put("value/one", bytes([turn % 256]) * SIZE)


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_writer_that_is_killed_leaves_no_torn_object(store: ObjectStore, store_url: str, if_absent: bool) -> None:
    dice = random.Random(5)
    for _ in range(6):
        store.delete_prefix("value/")
        store.delete("started")
        child = fork.Process(target=_write_for_ever, args=(0, store_url, if_absent))
        child.start()
        wait_until_sync(lambda: store.head("started"), seconds=30)
        # Not a wait for luck: whenever the kill comes, the outcome must be right; the moment is only varied.
        child.join(dice.uniform(0.0, 0.15))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        listed = keys_of(store, "value/")
        assert all(key.startswith("value/") and ".anabasis" not in key for key in listed)
        for key in listed:
            value = store.get(key)
            assert len(value) == SIZE
            assert value.count(value[:1]) == SIZE
        store.put("value/one", b"the next writer is not in the way of the dead one's lock")


# --- listings ---------------------------------------------------------------------------------------------

NAMES = ["a", "a-b/c", "a.b", "a/b", "a/b-c", "a/b/c", "a/b0", "aa/b", "b", "b/c/d/e", "é/ü", "z/\U0001f600"]


@pytest.fixture
def filled(store: ObjectStore, store_url: str) -> tuple[ObjectStore, list[str]]:
    # A file system cannot have both `a` and `a/b`.
    names = NAMES if store_url.startswith("s3:") else [name for name in NAMES if name not in {"a", "b", "a/b"}]
    for name in reversed(names):
        store.put(name, name.encode())
    return store, sorted(names)


def test_listings_are_in_key_order(filled: tuple[ObjectStore, list[str]]) -> None:
    store, names = filled
    assert keys_of(store) == names
    assert [info.size_bytes for info in store.list()] == [len(name.encode()) for name in names]


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a-", "a/b", "a/b/", "b/c/", "b/c/d/e", "é", "nothing/", "a/b/c/d"])
def test_listings_of_a_prefix(filled: tuple[ObjectStore, list[str]], prefix: str) -> None:
    store, names = filled
    assert keys_of(store, prefix) == [name for name in names if name.startswith(prefix)]


@pytest.mark.parametrize("prefix", ["", "a", "a/", "b/"])
def test_listings_that_start_after_a_key(filled: tuple[ObjectStore, list[str]], prefix: str) -> None:
    store, names = filled
    for start in [*names, "a-", "a/", "a/a", "a/b-", "0", "zzz"]:
        expected = [name for name in names if name.startswith(prefix) and name > start]
        assert keys_of(store, prefix, start_after=start) == expected, start


def test_listings_of_more_than_a_page(store: ObjectStore) -> None:
    names = [f"m/{number:04d}" for number in range(1_203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    assert keys_of(store, "m/") == names
    assert keys_of(store, "m/", start_after="m/1100") == names[1_101:]
    assert store.delete_prefix("m/") == 1_203
    assert store.list() == []


# --- deleting, children -----------------------------------------------------------------------------------


def test_deleting_is_idempotent(store: ObjectStore) -> None:
    store.put("a/b", b"1")
    for _ in range(2):
        store.delete("a/b")
    assert store.head("a/b") is None
    store.delete("never/was")
    store.put("a/b", b"2")
    assert store.get("a/b") == b"2"


def test_deleting_a_prefix_deletes_that_and_nothing_else(store: ObjectStore) -> None:
    for name in ("mail/000001/0-1", "mail/000001/1-1", "mail/000010/0-1", "mail/00000", "other"):
        store.put(name, b"")
    assert store.delete_prefix("mail/000001/") == 2
    assert keys_of(store) == ["mail/00000", "mail/000010/0-1", "other"]
    assert store.delete_prefix("mail/000001/") == 0
    assert store.delete_prefix("mail/0000") == 2
    assert keys_of(store) == ["other"]
    with pytest.raises(StoreDenied, match="prefix"):
        store.delete_prefix("")


def test_a_child_is_the_same_store_seen_from_below(store: ObjectStore) -> None:
    child = store.child("campaigns/demo")
    child.put("spec.json", b"{}", if_absent=True)
    store.put("campaigns/demo-2/spec.json", b"no")
    assert store.get("campaigns/demo/spec.json") == b"{}"
    assert keys_of(child) == ["spec.json"]
    assert child.child("deep/").url == store.child("campaigns/demo/deep").url
    assert open_store(child.url).get("spec.json") == b"{}"
    child.delete_prefix("spec")
    assert keys_of(store) == ["campaigns/demo-2/spec.json"]


BAD_KEYS = [
    "", "/", "/etc/passwd", "../out", "a/../../out", "a//b", "a/", "./a", "a/..", "a\0b", "a\nb", "a\\b", "\ud800",
    "x" * 201, "/".join(["x" * 100] * 11), ".anabasis-new-1", "a/.anabasis-x",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_could_leave_the_store_are_refused(store: ObjectStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.get_with_etag(key),
        lambda: store.head(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(StoreDenied, match="key"):
            call()
    for prefix in ("../", "a/../b", "/", "a//"):
        with pytest.raises(StoreDenied):
            store.list(prefix)
        with pytest.raises(StoreDenied):
            store.delete_prefix(prefix)
    with pytest.raises(StoreDenied):
        store.child("../other")
    assert store.list() == []
