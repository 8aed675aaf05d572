"""Reading a round's mail: buffers, threads, what the owner's tick may do."""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path

import pytest
import torch

from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage import open_store
from anabasis.training import fetch as fetching
from anabasis.training.aggregator import Interrupted
from anabasis.training.fetch import Shelf, fetch
from anabasis.training.mailbox import Mailbox
from tests.aggregation.world import World

torch.set_num_threads(1)


def a_mailbox(world: World, **options: object) -> Mailbox:
    return Mailbox(
        **{  # type: ignore[arg-type]
            "store": world.store,
            "manifest": world.newest,
            "count": world.count,
            "sequence_length": world.spec.data.sequence_length,
            "clock": lambda: 0.0,
            "tick": lambda: None,
            "shelf": Shelf(memory_bytes=1 << 20),
            **options,
        }
    )


def many(tmp_path: Path, slots: int = 12) -> World:
    return World(tmp_path, fleet={"slots": slots}, data={"partitions": slots}, training={"deterministic": False})


def test_many_letters_are_read_at_once_and_none_is_read_twice(tmp_path: Path) -> None:
    world = many(tmp_path)
    threads: set[str] = set()
    mailbox = a_mailbox(world, tick=lambda: threads.add(threading.current_thread().name))
    for slot in range(12):
        world.post(slot)
    roster = world.seat(*range(12))
    mailbox.collect(roster)
    assert sorted(mailbox.arrived) == list(range(12))
    assert len(threads) > 1
    before = dict(mailbox.arrived)
    mailbox.collect(roster)
    assert mailbox.arrived == before


def test_ticks_in_reading_threads_see_the_owners_context(tmp_path: Path) -> None:
    world = many(tmp_path, slots=4)
    owner: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="nobody")
    owner.set("the activity")
    seen: set[str] = set()
    for slot in range(4):
        world.post(slot)
    a_mailbox(world, tick=lambda: seen.add(owner.get())).collect(world.seat(0, 1, 2, 3))
    assert seen == {"the activity"}


def test_a_tick_may_stop_the_reading(tmp_path: Path) -> None:
    world = many(tmp_path, slots=4)
    for slot in range(4):
        world.post(slot)

    def stop() -> None:
        raise Interrupted("enough")

    with pytest.raises(Interrupted):
        a_mailbox(world, tick=stop).collect(world.seat(0, 1, 2, 3))


def test_mail_beyond_the_memory_allowance_goes_to_files_and_is_the_same(tmp_path: Path) -> None:
    world = many(tmp_path, slots=6)
    for slot in range(6):
        world.post(slot)
    roster = world.seat(*range(6))
    roomy, tight = a_mailbox(world), a_mailbox(world, shelf=Shelf(memory_bytes=30_000))
    for mailbox in (roomy, tight):
        mailbox.collect(roster)
    for slot in range(6):
        assert torch.equal(roomy.arrived[slot].tensors["q"], tight.arrived[slot].tensors["q"])


def test_large_objects_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MIN_PIECE_BYTES", 1_000)
    store, data, ticks = open_store((tmp_path / "s").as_uri()), bytes(range(256)) * 17, []
    store.put("k", data)
    shelf = Shelf(memory_bytes=1 << 20)
    found = fetch(store, "k", size_bytes=len(data), shelf=shelf, tick=lambda: ticks.append(1))
    assert bytes(found) == data
    assert len(ticks) == 5


def test_what_is_shorter_than_promised_is_damaged_and_what_is_gone_is_gone(tmp_path: Path) -> None:
    store, shelf = open_store((tmp_path / "s").as_uri()), Shelf(memory_bytes=1 << 20)
    store.put("k", b"short")
    with pytest.raises(CorruptData):
        fetch(store, "k", size_bytes=6, shelf=shelf)
    with pytest.raises(ObjectNotFound):
        fetch(store, "none", size_bytes=6, shelf=shelf)


def test_buffers_are_used_again() -> None:
    shelf = Shelf(memory_bytes=1 << 20)
    first = shelf.take(50_000)
    first[:3] = b"old"
    shelf.take_back()
    assert bytes(shelf.take(50_500)[:3]) == b"old"
    assert bytes(shelf.take(50_000)[:3]) == b"\0\0\0"
