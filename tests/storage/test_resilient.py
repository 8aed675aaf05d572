from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from anabasis.errors import ObjectNotFound, PreconditionFailed, StoreDenied, StoreUnavailable
from anabasis.storage import open_store, resilient
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from tests.support.flaky import FlakyStore


class Stop(Exception):
    pass


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sleeps are noted instead of slept; the clock goes on by them."""
    naps: list[float] = []
    monkeypatch.setattr(resilient.time, "sleep", naps.append)
    monkeypatch.setattr(resilient.time, "monotonic", lambda: sum(naps))
    return naps


@pytest.fixture
def flaky(tmp_path: Path) -> FlakyStore:
    return FlakyStore(open_store(str(tmp_path / "store")), seed=1)


def patient(store: ObjectStore, waits: list[tuple[str, float]], *, give_up: float | None = None) -> Resilient:
    return Resilient(store, on_wait=lambda *wait: waits.append(wait), give_up_after_seconds=give_up)


def test_it_is_a_store(flaky: FlakyStore) -> None:
    store: ObjectStore = patient(flaky, []).child("a")
    etag = store.put("k", b"0123", if_absent=True)
    store.put("k", b"4567", if_match=etag)
    assert store.get("k", start=1, length=2) == b"56"
    assert store.get_with_etag("k")[0] == b"4567"
    assert [info.key for info in store.list("k", start_after="j")] == ["k"]
    assert store.head("k") is not None
    store.delete("k")
    assert store.delete_prefix("k") == 0
    assert store.url == flaky.child("a").url


def test_an_outage_is_waited_for_with_signs_of_life(flaky: FlakyStore, slept: list[float]) -> None:
    waits: list[tuple[str, float]] = []

    def on_wait(reason: str, seconds: float) -> None:
        waits.append((reason, seconds))
        flaky.down = seconds < 60

    flaky.down = True
    store = Resilient(flaky, on_wait=on_wait, give_up_after_seconds=None)
    store.put("k", b"x")
    assert store.get("k") == b"x"
    assert waits[0] == ("put: no answer", 0.0)
    assert waits[-1][1] >= 60
    assert max(slept) <= resilient.SLICE_SECONDS
    gaps = [after - before for (_, before), (_, after) in pairwise(waits)]
    assert max(gaps) <= resilient.SLICE_SECONDS + 1e-9
    assert 60 / flaky.calls["put"] > 1.0, "the server that comes back is not stormed"


def test_delays_are_bounded_and_random(flaky: FlakyStore, slept: list[float]) -> None:
    flaky.down = True
    asked: list[int] = []

    def on_wait(_: str, seconds: float) -> None:
        asked.append(flaky.calls["get"])
        if seconds > 600:
            raise Stop

    with pytest.raises(Stop):
        Resilient(flaky, on_wait=on_wait, give_up_after_seconds=None).get("k")
    assert 600 / flaky.calls["get"] <= resilient.MAX_DELAY_SECONDS
    assert len(set(slept)) > 10


def test_it_gives_up_when_told_to(flaky: FlakyStore, slept: list[float]) -> None:
    flaky.down = True
    with pytest.raises(StoreUnavailable):
        patient(flaky, [], give_up=10.0).head("k")
    assert 10 <= sum(slept) <= 10 + resilient.MAX_DELAY_SECONDS


def test_who_waits_can_be_stopped(flaky: FlakyStore) -> None:
    def stop(*_: object) -> None:
        raise Stop

    flaky.down = True
    store = Resilient(flaky, on_wait=stop, give_up_after_seconds=None)
    for call in (lambda: store.get("k"), store.list, lambda: store.child("a").put("k", b"")):
        with pytest.raises(Stop):
            call()


@pytest.mark.usefixtures("slept")
def test_other_errors_are_not_waited_for(flaky: FlakyStore) -> None:
    waits: list[tuple[str, float]] = []
    store = patient(flaky, waits)
    with pytest.raises(ObjectNotFound):
        store.get("none")
    with pytest.raises(StoreDenied):
        store.put("../x", b"")
    store.put("k", b"x")
    with pytest.raises(PreconditionFailed):
        store.put("k", b"x", if_absent=True)
    assert waits == []


@pytest.mark.usefixtures("slept")
def test_a_conditional_write_whose_answer_was_lost_counts_as_won(flaky: FlakyStore) -> None:
    store = patient(flaky, [])
    for seed_turn in range(40):
        flaky.after = 0.6
        etag = store.put(f"k{seed_turn}", b"mine", if_absent=True)
        swapped = store.put(f"k{seed_turn}", b"my next", if_match=etag)
        flaky.after = 0.0
        assert store.get_with_etag(f"k{seed_turn}") == (b"my next", swapped)
    assert flaky.failures > 20


@pytest.mark.usefixtures("slept")
def test_a_lost_race_stays_lost_through_an_outage(flaky: FlakyStore) -> None:
    flaky.put("k", b"theirs")
    flaky.before = 0.7
    store = patient(flaky, [])
    for value in (b"mine", b"mine!!"):
        with pytest.raises(PreconditionFailed):
            store.put("k", value, if_absent=True)
        with pytest.raises(PreconditionFailed):
            store.put("k", value, if_match="0-0-0")
    assert flaky.failures > 0
    flaky.before = 0.0
    assert store.get("k") == b"theirs"
