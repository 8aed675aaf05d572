"""Aggregators that are killed at every step, frozen, doubled: the campaign's bits do not care."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from anabasis.campaign.records import keys
from anabasis.storage.checkpoints import read_checkpoint
from anabasis.storage.versions import audit_offsets
from anabasis.training.parameters import fingerprint
from anabasis.training.replica import Replica
from tests.aggregation.world import World, facts
from tests.faults.aggregator_process import campaign, finished, freeze, started
from tests.support.wait import wait_until_sync as wait_until

torch.set_num_threads(1)

pytestmark = pytest.mark.faults

UNTIL = 6
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("undisturbed")
    campaign(folder, until=UNTIL)
    return World(folder)


def result_of(world: World) -> tuple[object, ...]:
    """Everything that must be the same bits."""
    assert audit_offsets(world.store) == []
    checkpoint = read_checkpoint(world.store, UNTIL)
    return (
        facts(world.store, range(UNTIL + 1)),
        checkpoint.parameters.hash,
        checkpoint.outer.hash,
        checkpoint.offsets,
    )


@pytest.mark.parametrize(
    "point",
    [
        "prepared_spec",
        "prepared_dataset",
        "prepared_snapshot",
        "mail_read:1",
        "merged:1",
        "before_delta:2",
        "delta_written:2",
        "before_commit:3",
        "after_commit:3",
        "mail_read:5",
        "merged:6",
        "delta_written:5",
        "before_commit:6",
        "after_commit:6",
        "before_checkpoint:1",
        "checkpoint_parameters_written:1",
        "checkpoint_outer_written:2",
        "before_checkpoint_manifest:1",
        "before_checkpoint_manifest:3",
        "after_checkpoint_manifest:2",
        "garbage_collected:2",
        "garbage_collected:3",
    ],
)
def test_killed_at_any_step_and_restarted_the_result_is_bit_identical(
    tmp_path: Path, undisturbed: World, point: str
) -> None:
    assert finished(started("campaign", tmp_path, crash_at=point, until=UNTIL)) == KILLED
    assert finished(started("campaign", tmp_path, until=UNTIL)) == 0
    assert result_of(World(tmp_path)) == result_of(undisturbed)


def test_killed_at_every_commit_the_result_is_bit_identical(tmp_path: Path, undisturbed: World) -> None:
    kills = 0
    points = ["merged", "delta_written", "before_commit", "after_commit"]
    while finished(started("campaign", tmp_path, crash_at=points[kills % 4], until=UNTIL)) == KILLED:
        kills += 1
        assert kills < 40
    assert kills >= UNTIL
    assert result_of(World(tmp_path)) == result_of(undisturbed)


@pytest.mark.parametrize("point", ["before_rollback", "after_rollback"])
def test_killed_while_rolling_back_there_is_one_rollback(tmp_path: Path, point: str) -> None:
    campaign(tmp_path, until=4)
    assert finished(started("rollback", tmp_path, crash_at=point)) == KILLED
    assert finished(started("rollback", tmp_path)) == 0
    newest = World(tmp_path).newest
    assert (newest.version, newest.kind, newest.rolled_back_to) == (5, "rollback", 4)


def test_a_frozen_aggregator_is_replaced_and_on_waking_harms_nothing(tmp_path: Path, undisturbed: World) -> None:
    world = World(tmp_path, training={"outer_momentum": 0.9, "dense_warmup_rounds": 0}, target={"rounds": UNTIL})
    first = started("campaign", tmp_path, until=UNTIL, slow=True)
    wait_until(lambda: world.newest.version >= 1, seconds=30)
    assert first.pid is not None
    freeze(first.pid, world.folder)
    try:
        assert world.newest.version < UNTIL, "the test needs a slower aggregator"
        assert finished(started("campaign", tmp_path, until=UNTIL)) == 0
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert finished(first) == 0
    assert result_of(world) == result_of(undisturbed)
    assert world.store.head(keys.version(UNTIL + 1)) is None


def test_two_aggregators_at_once_commit_one_chain(tmp_path: Path) -> None:
    world = World(
        tmp_path, fleet={"slots": 3}, training={"deterministic": False, "outer_momentum": 0.9}, target={"rounds": 60}
    )
    until = 20
    errors: list[BaseException] = []

    def run(slots: tuple[int, ...]) -> None:
        try:
            aggregator = world.aggregator(on_tick=world.nodes(*slots))
            aggregator.advance(until_version=until)
            state = aggregator.current()
            assert fingerprint(state.parameters.flat) == state.manifest.fingerprint
        except BaseException as error:  # a thread's failure is the test's
            errors.append(error)

    threads = [threading.Thread(target=run, args=(slots,)) for slots in ((0, 1, 2), (2, 1, 0), (1, 2, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    assert audit_offsets(world.store) == []
    assert Replica.load(world.store).version >= until
    assert world.aggregator().current().manifest.fingerprint == world.newest.fingerprint
