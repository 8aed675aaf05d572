"""What is particular to S3: outages, wrong configuration, lost answers, large objects."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.errors import ObjectNotFound, PreconditionFailed, StorageError, StoreDenied, StoreUnavailable
from anabasis.storage import open_store, s3_multipart
from anabasis.storage.resilient import Resilient
from anabasis.storage.s3 import S3Store, _safe_start  # pyright: ignore[reportPrivateUsage]
from tests.support.flaky import FaultProxy
from tests.support.s3 import BUCKET, S3Server
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabasis.storage.s3_connection.FIRST_DELAY_SECONDS", 0.002)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(s3_server: S3Server, proxy: FaultProxy, request: pytest.FixtureRequest) -> S3Store:
    """A store that reaches the server by way of the proxy, and does not wait long for answers."""
    return s3_server.store(f"proxied/{request.node.name[:60]}", endpoint=proxy.endpoint, read_timeout_seconds=1.0)


def everything(store: S3Store) -> list[Any]:
    """Each kind of call once, as functions."""
    return [
        lambda: store.put("k", b"x"),
        lambda: store.put("k", b"x", if_absent=True),
        lambda: store.get("k"),
        lambda: store.get("k", start=1, length=2),
        lambda: store.get_with_etag("k"),
        lambda: store.head("k"),
        lambda: store.list("a/"),
        lambda: store.delete("k"),
        lambda: store.delete_prefix("a/"),
    ]


# --- configuration ----------------------------------------------------------------------------------------


def test_a_missing_bucket_is_the_users_to_mend(s3_server: S3Server) -> None:
    for number, _ in enumerate(everything(s3_server.store())):
        store = s3_server.store(bucket="no-such-bucket")
        with pytest.raises(StoreDenied, match=r"no-such-bucket.*create it"):
            everything(store)[number]()


@pytest.mark.parametrize("credentials", [("unknown", "secret"), (S3Server.access_key, "wrong")])
def test_wrong_credentials_are_named_but_never_shown(s3_server: S3Server, credentials: tuple[str, str]) -> None:
    for call in everything(s3_server.store(credentials=credentials)):
        with pytest.raises(StoreDenied, match="AWS_SECRET_ACCESS_KEY") as caught:
            call()
        assert credentials[1] not in str(caught.value).split()
        assert "\n" not in str(caught.value)


def test_missing_credentials_are_named(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABASIS_S3_ENDPOINT", s3_server.endpoint)
    with pytest.raises(StoreDenied, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{BUCKET}/x").get("k")


def test_the_environment_says_where_and_who(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    env = dict(s3_server.env)
    monkeypatch.setenv("AWS_ENDPOINT_URL", env.pop("ANABASIS_S3_ENDPOINT"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/from-the-environment/")
    store.put("k", b"x")
    assert store.url == f"s3://{BUCKET}/from-the-environment"
    assert s3_server.store("from-the-environment").get("k") == b"x"


@pytest.mark.parametrize("endpoint", ["not a url", "http://", "ftp:/x"])
def test_an_endpoint_that_makes_no_sense_is_refused(s3_server: S3Server, endpoint: str) -> None:
    with pytest.raises(StorageError):
        s3_server.store(endpoint=endpoint).get("k")


def test_secrets_in_the_endpoint_are_not_shown() -> None:
    from anabasis.storage.s3_connection import Connection

    connection = Connection(bucket="b", endpoint="http://user:hunter2@127.0.0.1:1", credentials=("a", "b"))
    with pytest.raises(StorageError) as caught:
        S3Store(connection).get("k")
    assert "hunter2" not in str(caught.value)


# --- outages ----------------------------------------------------------------------------------------------


def test_nobody_listens(s3_server: S3Server) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
        for call in everything(s3_server.store(endpoint=endpoint)):
            with pytest.raises(StoreUnavailable, match="no server answers"):
                call()


def test_a_server_that_hangs_is_given_up_on(proxy: FaultProxy, proxied: S3Store) -> None:
    proxied.put("k", b"x")
    proxy.set("hang")
    for call in (everything(proxied)[0], everything(proxied)[2]):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            call()
    assert proxy.seen["hang"] == 2, "an answer that took too long once is not waited for again"
    proxy.set("pass")
    assert proxied.get("k") == b"x"


def test_connections_that_break_and_errors_that_persist_are_outages(proxy: FaultProxy, proxied: S3Store) -> None:
    proxy.set("cut")
    with pytest.raises(StoreUnavailable, match="connection broke"):
        proxied.get("k")
    proxy.set("error")
    with pytest.raises(StoreUnavailable, match="503"):
        proxied.get("k")
    assert 2 <= proxy.seen["error"] <= 5
    proxy.refuse()
    with pytest.raises(StoreUnavailable, match="no server answers"):
        proxied.get("k")
    proxy.set("pass")
    proxy.accept()
    with pytest.raises(ObjectNotFound):
        proxied.get("k")


@pytest.mark.parametrize("fault", ["cut", "lose", "error", "error_after"])
def test_a_fault_that_passes_is_not_noticed(proxy: FaultProxy, proxied: S3Store, fault: Any) -> None:
    proxied.put("a/k", b"0123")
    calls = [
        (lambda: proxied.get("a/k", start=1, length=2), b"12"),
        (lambda: proxied.get("a/k"), b"0123"),
        (lambda: len(proxied.list("a/")), 1),
        (lambda: bool(proxied.put("new", b"new", if_absent=True)), True),
        (lambda: bool(proxied.put("a/k", b"changed", if_match=proxied.list("a/")[0].etag)), True),
        (lambda: proxied.delete("new"), None),
        (lambda: proxied.delete_prefix("a/"), 1),
    ]
    for call, expected in calls:
        proxy.set(fault, times=2)
        assert call() == expected
    proxy.set("pass")
    assert proxied.list() == []


@pytest.mark.parametrize("fault", ["lose", "error_after"])
def test_a_conditional_write_whose_answer_is_lost_counts_as_won_only_if_it_was(
    s3_server: S3Server, proxy: FaultProxy, proxied: S3Store, fault: Any
) -> None:
    proxy.set(fault, methods=frozenset({"PUT"}), times=1)
    etag = proxied.put("mine", b"my bytes", if_absent=True)
    assert proxied.get_with_etag("mine") == (b"my bytes", etag)
    proxied.put("theirs", b"others' bytes")
    for value in (b"my bytes too", b"others bytes?"):
        proxy.set(fault, methods=frozenset({"PUT"}), times=1)
        with pytest.raises(PreconditionFailed):
            proxied.put("theirs", value, if_absent=True)
    proxy.set("pass")
    with pytest.raises(PreconditionFailed):  # without a lost answer, equal bytes are somebody else's
        proxied.put("mine", b"my bytes", if_absent=True)


def test_swaps_through_lost_answers_count_exactly_once(s3_server: S3Server, proxy: FaultProxy) -> None:
    """Each value is unique, so a swap that happened twice or not at all shows."""
    proxied = s3_server.store("swaps", endpoint=proxy.endpoint)  # SeaweedFS takes seconds over contended swaps
    proxied.put("log", b"")
    proxy.set("lose", share=0.2, methods=frozenset({"PUT"}))

    def append(writer: int) -> None:
        for turn in range(4):
            while True:
                try:
                    value, etag = proxied.get_with_etag("log")
                    proxied.put("log", value + f"{writer}.{turn};".encode(), if_match=etag)
                    break
                except PreconditionFailed:
                    if f"{writer}.{turn};".encode() in proxied.get("log"):
                        break  # done, and built upon before the answer could be asked for again

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(2)))
    written = proxied.get("log").decode().split(";")[:-1]
    assert sorted(written) == sorted(f"{writer}.{turn}" for writer in range(2) for turn in range(4))


def test_a_server_that_is_killed_and_started_again_has_everything(own_s3_server: S3Server) -> None:
    store = own_s3_server.store()
    store.put("k", b"kept", if_absent=True)
    own_s3_server.kill()
    with pytest.raises(StoreUnavailable):
        store.get("k")
    own_s3_server.start()
    # Its parts find each other again while it answers with 500 already.
    patient = Resilient(store, on_wait=lambda _reason, _seconds: None, give_up_after_seconds=60)
    assert patient.get("k") == b"kept"


# --- large objects ----------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabasis.storage.s3.MULTIPART_FROM_BYTES", 12 << 20)
    monkeypatch.setattr(s3_multipart, "PART_BYTES", 5 << 20)


@pytest.mark.usefixtures("small_parts")
def test_large_objects_go_in_parts_under_the_same_conditions(s3_server: S3Server) -> None:
    store = s3_server.store("parts")
    value = random.Random(2).randbytes(13 << 20)
    etag = store.put("k", memoryview(value), if_absent=True)
    assert store.get_with_etag("k") == (value, etag)
    with pytest.raises(PreconditionFailed):
        store.put("k", value, if_absent=True)
    swapped = store.put("k", value[::-1], if_match=etag)
    with pytest.raises(PreconditionFailed):
        store.put("k", value, if_match=etag)
    assert store.get_with_etag("k") == (value[::-1], swapped)


@pytest.mark.usefixtures("small_parts")
def test_large_objects_survive_faults_on_the_way(proxy: FaultProxy, proxied: S3Store) -> None:
    value = random.Random(3).randbytes(12 << 20)
    proxy.set("cut", share=0.3)
    proxied.put("k", value, if_absent=True)
    proxy.set("lose", methods=frozenset({"POST"}), times=3)
    proxied.put("other", value, if_absent=True)
    proxy.set("pass")
    assert proxied.get("k") == proxied.get("other") == value


@pytest.mark.usefixtures("small_parts")
def test_a_large_upload_that_fails_leaves_nothing(s3_server: S3Server, proxy: FaultProxy, proxied: S3Store) -> None:
    proxy.set("error", methods=frozenset({"PUT"}))
    with pytest.raises(StoreUnavailable):
        proxied.put("k", bytes(12 << 20), if_absent=True)
    client = s3_server.store()._connection.client()  # pyright: ignore[reportPrivateUsage]
    uploads = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert [upload for upload in uploads if upload["Key"].startswith(proxied.url.split("/", 3)[3])] == []
    assert proxied.head("k") is None


# --- threads, listings ------------------------------------------------------------------------------------


def test_one_store_serves_many_threads(s3_server: S3Server) -> None:
    store = s3_server.store("threads")
    barrier = threading.Barrier(16)

    def work(number: int) -> bytes:
        barrier.wait(30)  # also the client is made once
        store.put(f"k{number}", f"{number}".encode())
        return store.get(f"k{number}")

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [f"{number}".encode() for number in range(16)]


def test_a_killed_server_is_noticed_by_those_who_wait(own_s3_server: S3Server) -> None:
    store = own_s3_server.store()
    caught: list[StorageError] = []

    def poll() -> None:
        try:
            while True:
                store.list("mail/")
        except StorageError as error:
            caught.append(error)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    own_s3_server.kill()
    wait_until_sync(lambda: caught, seconds=30)
    assert isinstance(caught[0], StoreUnavailable)


names = st.lists(st.text("ab-.", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)


@given(key=names, start_after=names, cut=st.integers(0, 4))
def test_no_server_leaves_out_a_key_that_belongs_into_a_listing(key: str, start_after: str, cut: int) -> None:
    prefix = start_after[:cut]
    start = _safe_start(start_after, prefix=prefix)
    assert start == "" or (start.startswith(prefix) and start_after.startswith(start))
    if start and key.startswith(prefix) and key > start_after:
        assert key > start  # in key order
        assert key.split("/") > start.split("/")  # folder by folder
        assert not key.startswith(f"{start}/")
