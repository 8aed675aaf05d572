"""The aggregator's life: rounds, waiting, recovery, what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from anabasis.campaign.records import keys
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.versions import read_version
from anabasis.training.checkpointing import write_checkpoint
from anabasis.training.parameters import fingerprint
from anabasis.training.replica import Replica
from tests.aggregation.world import World, both, facts, patient

torch.set_num_threads(1)

FREE = {"training": {"deterministic": False, "work_proportional": False}}


def test_a_leg_merges_rounds_until_its_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=3)
    assert (result.reason, result.version, result.merged_rounds) == ("until", 3, 3)
    assert world.newest.close_reason == "all 2 nodes reported"
    assert [(node.slot, node.rounds) for node in result.nodes] == [(0, 3), (1, 3)]


def test_every_reader_has_the_aggregators_bits(tmp_path: Path) -> None:
    world = World(tmp_path)
    aggregator = world.aggregator(on_tick=world.nodes(0, 1))
    aggregator.advance(until_version=2)
    follower = Replica.load(world.store)
    aggregator.advance(until_version=5)
    while follower.version < 5:
        follower.advance(world.store, read_version(world.store, follower.version + 1))
    assert fingerprint(follower.flat) == fingerprint(aggregator.current().parameters.flat) == world.newest.fingerprint
    assert fingerprint(Replica.load(world.store, version=3).flat) == read_version(world.store, 3).fingerprint


def test_the_target_ends_the_leg(tmp_path: Path) -> None:
    world = World(tmp_path, target={"rounds": 2})
    result = world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=9)
    assert (result.reason, result.version) == ("target", 2)
    assert world.newest.plan is not None


def test_tokens_and_loss_are_targets_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.seat(0, 1, target_tokens=1)
    assert world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=9).version == 1
    world.seat(0, 1, target_loss=4.85)
    assert world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=9).version == 3


def test_a_paused_campaign_interrupts_the_leg(tmp_path: Path) -> None:
    world = World(tmp_path)
    aggregator = world.aggregator(on_tick=world.nodes(0, 1, until=2))

    def pause(_: str) -> None:
        if world.newest.version == 2:
            world.seat(0, 1, phase="paused")

    aggregator.on_tick = both(aggregator.on_tick, pause)
    result = aggregator.advance(until_version=9, from_version=0)
    assert (result.reason, result.version, result.detail) == ("interrupted", 2, "the campaign is paused")
    assert sum(node.rounds for node in result.nodes) == 4


def test_the_owner_can_stop_it_at_any_tick(tmp_path: Path) -> None:
    world = World(tmp_path)
    for ticks in range(30):
        aggregator = world.aggregator(on_tick=both(world.nodes(0, 1), patient(ticks)))
        result = aggregator.advance(until_version=3, from_version=0)
        assert result.reason in ("interrupted", "until")
        assert sum(node.rounds for node in result.nodes) == 2 * result.version
    assert world.newest.version == 3


def test_a_retried_leg_counts_each_version_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    result = world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=4, from_version=0)
    assert [(node.rounds, node.train_seconds) for node in result.nodes] == [(4, 4.0), (4, 8.0)]
    assert (result.from_version, result.version) == (0, 4)
    assert world.aggregator().advance(until_version=4, from_version=4).nodes == []


def test_it_says_what_it_waits_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.post(0)
    heard: list[str] = []
    aggregator = world.aggregator(on_tick=both(heard.append, patient(40)))
    result = aggregator.advance(until_version=1)
    assert result.reason == "interrupted"
    assert "slot 1: deterministic rounds need every slot" in heard
    report = aggregator.progress(waiting_for=heard[-1])
    assert report is not None
    assert report.version == 0


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_a_restarted_aggregator_continues_bit_by_bit(tmp_path: Path, restarts: int) -> None:
    undisturbed, restarted = World(tmp_path / "a"), World(tmp_path / "b")
    undisturbed.aggregator(on_tick=undisturbed.nodes(0, 1)).advance(until_version=6)
    for version in range(restarts, 7, restarts):
        restarted.aggregator(on_tick=restarted.nodes(0, 1)).advance(until_version=version)
    restarted.aggregator(on_tick=restarted.nodes(0, 1)).advance(until_version=6)
    assert facts(restarted.store, range(7)) == facts(undisturbed.store, range(7))
    for world in (undisturbed, restarted):
        write_checkpoint(world.aggregator(), version=6, keep=2)
    outer = [sorted(info.key for info in world.store.list("outer/")) for world in (undisturbed, restarted)]
    assert outer[0] == outer[1]


def test_without_its_mail_momentum_starts_anew_and_an_incident_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, training={"outer_momentum": 0.9, "dense_warmup_rounds": 0})
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=3)
    world.store.delete(keys.mail(1, 0, 1))
    aggregator = world.aggregator(on_tick=world.nodes(0, 1))
    assert not aggregator.current().outer.momentum.any()
    result = aggregator.advance(until_version=4)
    assert result.version == 4
    assert "momentum starts anew" in result.incidents[0].text
    assert Replica.load(world.store).version == 4


def test_a_corrupt_contribution_is_sent_back_and_healed(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.contribution(0)
    bad = bytearray(good)
    bad[-100] ^= 1
    key = keys.mail(0, 0, 1)
    world.store.put(key, bytes(bad))
    world.post(1)

    def upload_again(_: str) -> None:
        if world.store.head(key) is None:
            world.store.put(key, good, if_absent=True)

    result = world.aggregator(on_tick=both(upload_again, patient(60))).advance(until_version=1)
    assert result.version == 1
    assert [(item.kind, item.slot, item.attempt) for item in result.incidents] == [("corrupt_contribution", 0, 1)]
    assert len(world.newest.contributions) == 2


def test_a_contribution_that_stays_corrupt_is_rejected_after_three_uploads(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    key, uploads = keys.mail(0, 0, 1), []

    def upload_garbage(_: str) -> None:
        if world.store.head(key) is None:
            uploads.append(1)
            world.store.put(key, b"garbage", if_absent=True)

    world.post(1)
    result = world.aggregator(on_tick=both(upload_garbage, patient(60))).advance(until_version=1)
    assert result.version == 1
    assert len(uploads) == 4
    assert [item.reason for item in world.newest.rejected] == ["corrupt"]
    assert [item.header.slot for item in world.newest.contributions] == [1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": math.inf}, "not_finite"),
        ({"update": torch.full((4096,), math.nan)}, "not_finite"),
        ({"update": torch.ones(4095)}, "shape"),
        ({"base_chain": "another"}, "wrong_base"),
        ({"base_version": 7}, "wrong_base"),
        ({"consumed": {"1": (0, 8)}}, "offsets"),
        ({"consumed": {"0": (1, 9)}}, "offsets"),
        ({"consumed": {"0": (0, 9)}}, "offsets"),
        ({"tokens": 999}, "offsets"),
        ({"train_seconds": -1.0}, "corrupt"),
    ],
)
def test_what_does_not_fit_is_rejected_and_recorded(tmp_path: Path, fields: dict, reason: str) -> None:
    world = World(tmp_path, **FREE)
    world.post(0, **fields)
    world.post(1)
    result = world.aggregator(on_tick=patient(40)).advance(until_version=1)
    assert result.version == 1
    assert [(item.slot, item.reason) for item in world.newest.rejected] == [(0, reason)]
    assert [item.header.slot for item in world.newest.contributions] == [1]
    assert world.newest.contributions[0].weight == 1.0


def test_a_ghost_in_the_nodes_place_is_withdrawn(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.post(0, nonce="of an earlier life")
    world.post(1)

    def upload_again(_: str) -> None:
        world.post(0)

    result = world.aggregator(on_tick=both(upload_again, patient(60))).advance(until_version=1)
    assert [item.header.nonce for item in world.newest.contributions] == ["n0-1", "n1-1"]
    assert [item.kind for item in result.incidents] == ["corrupt_contribution"]


def test_a_norm_out_of_line_is_rejected(tmp_path: Path) -> None:
    world = World(tmp_path, fleet={"slots": 4}, data={"partitions": 4}, **FREE)
    world.post(0, scale=0.5)
    for slot in (1, 2, 3):
        world.post(slot)
    result = world.aggregator(on_tick=patient(60)).advance(until_version=1)
    assert [(item.slot, item.reason) for item in world.newest.rejected] == [(0, "norm")]
    assert [item.kind for item in result.incidents] == ["rejected_contribution"]
    assert world.newest.offsets[str(world_lane(world, 0))] == 0


def world_lane(world: World, slot: int) -> int:
    plan = read_version(world.store, 0).plan
    assert plan is not None
    return plan.assignments[str(slot)].partitions[0]


def test_weights_follow_tokens(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    lane = str(world_lane(world, 0))
    world.post(0, consumed={lane: (0, 6)}, tokens=96)
    world.post(1)
    world.aggregator(on_tick=patient(40)).advance(until_version=1)
    weights = [item.weight for item in world.newest.contributions]
    tokens = [item.header.tokens for item in world.newest.contributions]
    assert weights == [count / sum(tokens) for count in tokens]
    assert world.newest.tokens_total == sum(tokens)


def test_mail_of_strangers_and_ghosts_is_not_merged(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.seat(0, 1, attempt=2)
    world.post(0, attempt=1)
    world.post(0, attempt=3)
    world.post(1, attempt=2)
    world.post(0, attempt=2)
    world.aggregator(on_tick=patient(40)).advance(until_version=1)
    assert [(c.header.slot, c.header.attempt) for c in world.newest.contributions] == [(0, 2), (1, 2)]
    assert [(item.attempt, item.reason) for item in world.newest.rejected] == [(1, "fenced")]


def test_late_mail_is_ignored_and_its_samples_are_trained_again(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.seat(1)
    world.post(1)
    world.aggregator(on_tick=patient(40)).advance(until_version=1)
    before = world.newest.offsets
    world.post(0, version=0)
    world.seat(0, 1)
    world.post(0)
    world.post(1)
    world.aggregator(on_tick=patient(40)).advance(until_version=2)
    slot_0 = next(item.header for item in world.newest.contributions if item.header.slot == 0)
    assert all(first == before[lane] for lane, (first, _) in slot_0.consumed.items())


def test_work_of_a_node_that_left_after_its_upload_counts(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.post(0)
    ticks: list[str] = []

    def leave(reason: str) -> None:
        ticks.append(reason)
        if any("slot 1" in reason for reason in ticks) and len(ticks) < 100:
            ticks.extend([""] * 100)
            world.seat(1, attempt=1)
            world.post(1)

    world.aggregator(on_tick=both(leave, patient(60))).advance(until_version=1)
    assert [item.header.slot for item in world.newest.contributions] == [0, 1]


def test_when_everyone_sends_nonsense_the_leg_ends_as_diverged(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.post(0, loss=math.nan)
    world.post(1, loss=math.nan)
    result = world.aggregator(on_tick=patient(40)).advance(until_version=1)
    assert (result.reason, result.version) == ("diverged", 0)
    assert "nothing sound" in result.detail


def test_a_loss_spike_is_committed_and_then_reported_even_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, **FREE)
    world.aggregator(on_tick=world.nodes(0, 1, until=4)).advance(until_version=4)
    world.post(0, loss=99.0)
    world.post(1, loss=99.0)
    result = world.aggregator(on_tick=patient(60)).advance(until_version=9)
    assert (result.reason, result.version) == ("diverged", 5)
    assert world.newest.loss_mean == read_version(world.store, 4).loss_mean
    again = world.aggregator(on_tick=patient(60)).advance(until_version=9)
    assert (again.reason, again.version) == ("diverged", 5)


def test_uncompressed_campaigns_work(tmp_path: Path) -> None:
    world = World(tmp_path, training={"compression": "none"})
    tick = world.nodes()

    def post(reason: str) -> None:
        tick(reason)
        for slot in (0, 1):
            if world.store.head(keys.mail(world.newest.version, slot, 1)) is None:
                world.post(slot, compression="none")

    world.aggregator(on_tick=post).advance(until_version=2)
    delta = world.newest.delta
    assert delta is not None
    assert delta.size_bytes > 4 * world.count
    assert hash_bytes(world.store.get(delta.key)) == delta.hash
    assert Replica.load(world.store).version == 2
    assert world.aggregator().current().manifest.version == 2


def test_validation_of_the_base_version_is_recorded(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.post(0, validation_loss=4.5)
    world.post(1)
    result = world.aggregator(on_tick=patient(40)).advance(until_version=1)
    assert result.validation_loss == world.newest.validation_loss == 4.5
