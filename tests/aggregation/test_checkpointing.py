"""Checkpoints, falling back from a torn one, rolling back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load as reference_load

from anabasis.campaign.records import keys
from anabasis.storage.checkpoints import list_checkpoints, read_checkpoint
from anabasis.storage.versions import read_version
from anabasis.training.checkpointing import roll_back, write_checkpoint
from anabasis.training.replica import Replica
from tests.aggregation.world import World, patient

torch.set_num_threads(1)

NESTEROV = {"training": {"outer_momentum": 0.9, "dense_warmup_rounds": 0}}


def advanced(world: World, version: int) -> None:
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=version)


def checkpoint(world: World, version: int, *, keep: int = 2) -> None:
    result = write_checkpoint(world.aggregator(), version=version, keep=keep)
    assert result.version == version


def damage(world: World, key: str) -> None:
    data = bytearray(world.store.get(key))
    data[len(data) // 2] ^= 0xFF
    world.store.put(key, bytes(data))


def test_a_checkpoint_holds_named_parameters_and_the_outer_state(tmp_path: Path) -> None:
    world = World(tmp_path, **NESTEROV)
    advanced(world, 3)
    checkpoint(world, 3)
    manifest = read_checkpoint(world.store, 3)
    named = reference_load(world.store.get(manifest.parameters.key))
    replica = Replica.load(world.store)
    assert {entry.name for entry in manifest.layout} == set(named)
    assert torch.equal(torch.cat([named[entry.name].flatten() for entry in manifest.layout]), replica.flat)
    outer = reference_load(world.store.get(manifest.outer.key))
    assert outer["momentum"].any()


def test_writing_the_same_checkpoint_again_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    advanced(world, 2)
    first = write_checkpoint(world.aggregator(), version=2, keep=2)
    again = write_checkpoint(world.aggregator(), version=2, keep=2)
    assert first.bytes_written > 4 * world.count
    assert again.bytes_written == 0
    assert again.version == 2


def test_a_damaged_checkpoint_is_mended_by_writing_it_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    advanced(world, 2)
    aggregator = world.aggregator()
    write_checkpoint(aggregator, version=2, keep=2)
    damage(world, read_checkpoint(world.store, 2).outer.key)
    assert write_checkpoint(aggregator, version=2, keep=2).bytes_written > 0
    assert world.aggregator().current().manifest.version == 2
    assert world.aggregator().take_incidents() == []


def test_resuming_from_a_checkpoint_is_bit_identical(tmp_path: Path) -> None:
    one, two = World(tmp_path / "a", **NESTEROV), World(tmp_path / "b", **NESTEROV)
    advanced(one, 6)
    for version in (2, 4):
        advanced(two, version)
        checkpoint(two, version)
    advanced(two, 6)
    assert one.newest.chain == two.newest.chain
    assert one.newest.fingerprint == two.newest.fingerprint


@pytest.mark.parametrize("part", ["parameters", "outer", "manifest"])
def test_a_torn_newest_checkpoint_falls_back_bit_by_bit_and_says_so(tmp_path: Path, part: str) -> None:
    one, two = World(tmp_path / "a", **NESTEROV), World(tmp_path / "b", **NESTEROV)
    advanced(one, 6)
    advanced(two, 2)
    checkpoint(two, 2)
    advanced(two, 5)
    checkpoint(two, 5)
    torn = read_checkpoint(two.store, 5)
    key = keys.checkpoint(5) if part == "manifest" else getattr(torn, part).key
    data = two.store.get(key)
    two.store.put(key, data[: len(data) // 2])
    aggregator = two.aggregator(on_tick=two.nodes(0, 1))
    result = aggregator.advance(until_version=6)
    assert [item.kind for item in result.incidents] == ["checkpoint_fallback"]
    assert two.newest.fingerprint == one.newest.fingerprint


def test_a_reader_falls_back_from_a_torn_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    advanced(world, 3)
    checkpoint(world, 3)
    damage(world, read_checkpoint(world.store, 3).parameters.key)
    replica = Replica.load(world.store)
    assert replica.version == 3
    assert replica.skipped


def test_old_mail_goes_and_everything_can_still_be_resumed(tmp_path: Path) -> None:
    world = World(tmp_path, target={"rounds": 50})
    for version in (2, 4, 6):
        advanced(world, version)
        checkpoint(world, version)
    assert list_checkpoints(world.store) == [4, 6]
    assert world.store.list(keys.mail_prefix(1)) == []
    assert world.store.list(keys.mail_prefix(5)) != []
    advanced(world, 7)
    assert Replica.load(world.store).version == 7


def test_rolling_back_restores_a_checkpoint_and_skips_the_data(tmp_path: Path) -> None:
    world = World(tmp_path, **NESTEROV)
    advanced(world, 2)
    checkpoint(world, 2)
    advanced(world, 5)
    follower = Replica.load(world.store)
    bad = world.newest
    result = roll_back(world.aggregator(), from_version=5, not_after=4)
    assert (result.version, result.restored) == (6, 2)
    newest = world.newest
    assert newest.kind == "rollback"
    assert newest.fingerprint == read_version(world.store, 2).fingerprint
    assert (newest.offsets, newest.tokens_total, newest.merged_rounds) == (bad.offsets, bad.tokens_total, 5)
    assert newest.loss_mean is None
    follower.advance(world.store, newest)
    assert torch.equal(follower.flat, Replica.load(world.store, version=2).flat)


def test_training_goes_on_after_a_rollback_with_fresh_momentum(tmp_path: Path) -> None:
    world = World(tmp_path, target={"rounds": 50}, **NESTEROV)
    advanced(world, 2)
    checkpoint(world, 2)
    advanced(world, 4)
    aggregator = world.aggregator(on_tick=world.nodes(0, 1))
    roll_back(aggregator, from_version=4, not_after=4)
    assert not aggregator.current().outer.momentum.any()
    assert aggregator.advance(until_version=7).reason == "until"
    assert world.aggregator().current().manifest.fingerprint == world.newest.fingerprint
    assert Replica.load(world.store).version == 7


def test_a_retried_rollback_is_the_same_rollback(tmp_path: Path) -> None:
    world = World(tmp_path)
    advanced(world, 3)
    first = roll_back(world.aggregator(), from_version=3, not_after=3)
    again = roll_back(world.aggregator(), from_version=3, not_after=3)
    assert (first.version, first.restored) == (again.version, again.restored) == (4, 0)
    assert world.newest.version == 4


def test_a_rollback_skips_torn_checkpoints_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    advanced(world, 2)
    checkpoint(world, 2)
    advanced(world, 4)
    checkpoint(world, 4)
    damage(world, read_checkpoint(world.store, 4).parameters.key)
    result = roll_back(world.aggregator(), from_version=4, not_after=4)
    assert result.restored == 2
    assert [item.kind for item in result.incidents] == ["checkpoint_fallback"]


def test_after_a_rollback_the_spike_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, training={"deterministic": False}, target={"rounds": 50})
    world.aggregator(on_tick=world.nodes(0, 1, until=4)).advance(until_version=4)
    world.post(0, loss=99.0)
    world.post(1, loss=99.0)
    aggregator = world.aggregator(on_tick=patient(80))
    assert aggregator.advance(until_version=9).reason == "diverged"
    roll_back(aggregator, from_version=5, not_after=5)
    aggregator.on_tick = world.nodes(0, 1)
    assert aggregator.advance(until_version=8).reason == "until"
