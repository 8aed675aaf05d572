"""Readers of versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage import open_store
from anabasis.storage.versions import read_version
from anabasis.training.replica import Replica
from tests.aggregation.world import World

torch.set_num_threads(1)


def test_an_empty_store_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound, match="prepare"):
        Replica.load(open_store((tmp_path / "s").as_uri()))


def test_it_tells_what_it_loads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    heard: list[str] = []
    Replica.load(world.store, on_progress=heard.append)
    assert heard == ["loading version 0", "loading version 1", "loading version 2"]


def test_the_layout_names_the_models_tensors(tmp_path: Path) -> None:
    replica = Replica.load(World(tmp_path).store)
    assert [(entry.name, entry.shape, entry.offset) for entry in replica.layout] == [
        ("0.weight", [256, 8], 0),
        ("1.weight", [256, 8], 2_048),
    ]


@pytest.mark.parametrize(
    "change", [{"fingerprint": "0" * 32}, {"chain": "0" * 64}, {"parent": 0, "version": 7}, {"delta": None}]
)
def test_a_manifest_that_does_not_follow_is_refused(tmp_path: Path, change: dict) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    replica = Replica.load(world.store, version=1)
    with pytest.raises(CorruptData):
        replica.advance(world.store, read_version(world.store, 2).model_copy(update=change))


def test_a_damaged_delta_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=1)
    delta = world.newest.delta
    assert delta is not None
    data = bytearray(world.store.get(delta.key))
    data[-1] ^= 1
    world.store.put(delta.key, bytes(data))
    replica = Replica.load(world.store, version=0)
    with pytest.raises(CorruptData):
        replica.advance(world.store, world.newest)
    with pytest.raises(CorruptData, match="version 1 cannot be rebuilt"):
        Replica.load(world.store)
