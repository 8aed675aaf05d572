"""Aggregators on a store that fails: they wait, say so, and the result is the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anabasis.errors import StoreUnavailable
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import audit_offsets
from anabasis.training.aggregator import Aggregator, Interrupted
from anabasis.training.checkpointing import roll_back, write_checkpoint
from tests.aggregation.world import World, both, facts

torch.set_num_threads(1)

pytestmark = pytest.mark.faults

NESTEROV = {"training": {"outer_momentum": 0.9, "dense_warmup_rounds": 0}}
METHODS = ("get", "get_with_etag", "head", "put", "list", "delete", "delete_prefix")


class Failing:
    """A store whose calls fail when `fails(method, key)` says so: before they act, or after (the answer is lost)."""

    def __init__(self, store: ObjectStore, fails: Callable[[str, str], str]) -> None:
        self._store = store
        self._fails = fails

    @property
    def url(self) -> str:
        return self._store.url

    def child(self, prefix: str) -> Failing:
        return Failing(self._store.child(prefix), self._fails)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in METHODS:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            when = self._fails(name, str(arguments[0]) if arguments else "")
            if when == "before":
                raise StoreUnavailable(f"{name}: no answer")
            result = real(*arguments, **options)
            if when == "after":
                raise StoreUnavailable(f"{name}: the answer was lost")
            return result

        return call


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def on(store: Any, world: World) -> Aggregator:
    return Aggregator(store, identity="here", on_tick=world.nodes(0, 1), sleep=lambda _: None)


@pytest.mark.parametrize("seed", range(5))
def test_on_a_store_that_fails_half_of_the_time_the_result_is_the_same(tmp_path: Path, seed: int) -> None:
    calm, stormy = World(tmp_path / "calm", **NESTEROV), World(tmp_path / "stormy", **NESTEROV)
    dice = random.Random(seed)
    failing = Failing(stormy.store, lambda *_: dice.choice(["before", "after", "", ""]))
    for world, store in ((calm, calm.store), (stormy, failing)):
        aggregator = on(store, world)
        for version in (2, 4, 5):
            assert aggregator.advance(until_version=version, from_version=version - 1).version == version
            write_checkpoint(aggregator, version=version, keep=2)
        assert roll_back(aggregator, from_version=5, not_after=4).restored == 4
        assert aggregator.advance(until_version=7, from_version=6).version == 7
    assert audit_offsets(stormy.store) == []
    assert facts(stormy.store, range(8)) == facts(calm.store, range(8))


def test_a_full_disk_is_waited_for_and_reported(tmp_path: Path) -> None:
    world = World(tmp_path)
    now, heard, full = [1_000.0], [], [True]

    def fails(method: str, key: str) -> str:
        return "before" if method == "put" and key.startswith("deltas/") and full[0] else ""

    def tick(reason: str) -> None:
        heard.append(reason)
        now[0] += 1.0
        if len([item for item in heard if "the object store" in item]) > 20:
            full[0] = False

    aggregator = on(Failing(world.store, fails), world)
    aggregator.clock = lambda: now[0]
    aggregator.on_tick = both(aggregator.on_tick, tick)
    result = aggregator.advance(until_version=1)
    assert (result.reason, result.version) == ("until", 1)
    assert [item.kind for item in result.incidents] == ["store_unavailable"]
    assert result.incidents[0].mended_at is not None
    assert result.incidents[0].mended_at - result.incidents[0].noticed_at >= 20


def test_an_outage_can_be_left_and_the_commit_is_made_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    calls = [0]

    def impatient(reason: str) -> None:
        calls[0] += "the object store" in reason
        if calls[0] > 3:
            raise Interrupted("cancelled")

    failing = Failing(world.store, lambda method, key: "before" if method == "put" else "")
    aggregator = on(failing, world)
    aggregator.on_tick = both(aggregator.on_tick, impatient)
    result = aggregator.advance(until_version=3, from_version=0)
    assert (result.reason, result.version) == ("interrupted", 0)
    assert on(world.store, world).advance(until_version=3, from_version=0).version == 3
    assert on(world.store, world).current().manifest.fingerprint == world.newest.fingerprint
