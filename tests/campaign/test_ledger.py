"""Every paid node-second is in exactly one bucket, whatever the clocks of the nodes say."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from anabasis.campaign import messages as m
from anabasis.campaign.ledger import budget_exhausted_at, campaign_ledger, close_life, life_buckets, paid_seconds
from anabasis.campaign.state import NodeLife, Totals
from anabasis.campaign.status import Bucket, NodeState
from tests.campaign.world import World, new_state, training


def _life(**fields: float | NodeState | None) -> NodeLife:
    return NodeLife.model_validate(
        {"slot": 0, "attempt": 1, "nonce": "n", "since": 0.0, "requested_at": 0.0, "price_per_hour": 3.6, **fields}
    )


def _buckets(life: NodeLife, *, now: float) -> dict[str, float]:
    return {bucket.value: round(seconds, 6) for bucket, seconds in life_buckets(life, now=now).items()}


def test_nothing_is_paid_before_the_provider_has_answered() -> None:
    assert paid_seconds(_life(), now=1_000.0) == 0.0
    assert life_buckets(_life(), now=1_000.0) == {}


def test_a_life_is_split_into_what_it_did() -> None:
    life = _life(
        paid_from=10.0, ready_at=30.0, leaving_at=100.0, train_seconds=40.0, sync_seconds=5.0, wait_seconds=15.0
    )
    assert _buckets(life, now=107.0) == {
        "boot": 20.0, "train": 40.0, "sync": 5.0, "wait": 15.0, "lost": 10.0, "release": 7.0,
    }  # fmt: skip


def test_what_no_commit_covers_yet_is_open_and_lost_when_the_machine_leaves_first() -> None:
    life = _life(paid_from=0.0, ready_at=10.0, train_seconds=20.0, state=NodeState.READY)
    assert _buckets(life, now=50.0) == {"boot": 10.0, "train": 20.0, "open": 20.0}
    life.leaving_at = 50.0
    assert _buckets(life, now=50.0) == {"boot": 10.0, "train": 20.0, "lost": 20.0}


def test_a_machine_that_never_became_ready_only_booted() -> None:
    assert _buckets(_life(paid_from=5.0), now=25.0) == {"boot": 20.0}
    assert _buckets(_life(paid_from=5.0, leaving_at=20.0), now=25.0) == {"boot": 15.0, "release": 5.0}


def test_a_node_that_claims_more_than_it_was_paid_for_is_scaled_down() -> None:
    life = _life(paid_from=0.0, ready_at=0.0, train_seconds=150.0, sync_seconds=50.0)
    assert _buckets(life, now=100.0) == {"train": 75.0, "sync": 25.0}


def test_a_pause_is_not_counted_as_waiting_too() -> None:
    life = _life(paid_from=0.0, ready_at=0.0, train_seconds=30.0, wait_seconds=65.0, paused_seconds=60.0)
    assert _buckets(life, now=100.0) == {"train": 30.0, "wait": 5.0, "paused": 60.0, "open": 5.0}


def test_booting_through_a_pause_is_booting_and_the_pause_begins_when_the_machine_is_ready() -> None:
    world = World.of(fleet={"slots": 1})
    world.tick()
    node = world.started[0]
    world.report(node, "booting")
    world.command(m.PauseCommand())
    world.tick(10.0)
    world.report(node, "ready")
    world.tick(5.0)
    world.command(m.ResumeCommand())
    world.tick(20.0)
    assert _buckets(world.state.nodes["0-1"], now=world.now) == {"boot": 10.0, "paused": 5.0, "open": 20.0}


def test_pauses_add_up_and_the_running_one_counts() -> None:
    world = training(fleet={"slots": 1})
    for _ in range(2):
        world.tick(10.0)
        world.command(m.PauseCommand())
        world.tick(4.0)
        world.command(m.ResumeCommand())
    world.command(m.PauseCommand())
    world.tick(3.0)
    assert _buckets(world.state.nodes["0-1"], now=world.now) == {"paused": 11.0, "open": 20.0}


def test_a_machine_paused_when_it_leaves_is_not_paused_while_it_is_released() -> None:
    world = training(fleet={"slots": 1})
    world.command(m.PauseCommand())
    world.tick(4.0)
    world.report(world.started[0], "failed", failure="Lost")
    world.tick(6.0)
    world.command(m.ResumeCommand())
    assert _buckets(world.state.nodes["0-1"], now=world.now) == {"paused": 4.0, "release": 6.0}


def test_cost_is_by_the_price_of_each_machine() -> None:
    world = World.of(fleet={"slots": 2}, budget={"price_per_node_hour": 2.0})
    world.tick()
    world.report(world.started[0], "booting", price_per_hour=5.0)
    world.report(world.started[1], "booting")
    world.tick(1_800.0)
    paid, cost, _ = campaign_ledger(world.state, now=world.now)
    assert (paid, cost) == (3_600.0, 3.5)
    world.report(world.started[0], "gone")
    world.tick(1_800.0)
    paid, cost, _ = campaign_ledger(world.state, now=world.now)
    assert paid == pytest.approx(5_400.0 + sum(paid_seconds(x, now=world.now) for x in _newer(world)))
    assert cost == pytest.approx(4.5)


def _newer(world: World) -> list[NodeLife]:
    return [life for life in world.state.nodes.values() if life.attempt > 1]


def test_a_repeated_report_does_not_start_the_meter_anew() -> None:
    world = World.of(fleet={"slots": 1})
    world.tick()
    for price in (5.0, 50.0):
        world.report(world.started[0], "booting", price_per_hour=price)
        world.tick(3_600.0)
    paid, cost, _ = campaign_ledger(world.state, now=world.now)
    assert (paid, cost) == (7_200.0, 10.0)


def test_the_budgets_end_is_the_earlier_of_both_limits() -> None:
    state = new_state(budget={"max_cost": 10.0, "max_node_hours": 4.0})
    assert budget_exhausted_at(state, now=0.0) == (None, 0.0)
    state.nodes["0-1"] = _life(paid_from=0.0).model_copy(update={"price_per_hour": 5.0})
    assert budget_exhausted_at(state, now=0.0) == (7_200.0, 0.0)
    state.nodes["0-1"].price_per_hour = 1.0
    assert budget_exhausted_at(state, now=3_600.0) == (14_400.0, 0.25)
    assert budget_exhausted_at(state, now=20_000.0)[0] == 20_000.0
    state.max_cost = state.max_node_hours = None
    assert budget_exhausted_at(state, now=20_000.0) == (None, 0.0)


_MOMENT = st.one_of(st.none(), st.floats(0, 1e6))
_SECONDS = st.floats(0, 1e6)


@settings(max_examples=300, deadline=None)
@given(
    paid_from=_MOMENT, ready_at=_MOMENT, leaving_at=_MOMENT, paused_from=_MOMENT, paused=_SECONDS, train=_SECONDS,
    sync=_SECONDS, wait=_SECONDS, now=_SECONDS, state=st.sampled_from(list(NodeState)),
)  # fmt: skip
def test_buckets_partition_paid_time_for_clocks_of_any_kind(
    *,
    paid_from: float | None,
    ready_at: float | None,
    leaving_at: float | None,
    paused_from: float | None,
    paused: float,
    train: float,
    sync: float,
    wait: float,
    now: float,
    state: NodeState,
) -> None:
    life = _life(
        paid_from=paid_from, ready_at=ready_at, leaving_at=leaving_at, paused_from=paused_from, paused_seconds=paused,
        train_seconds=train, sync_seconds=sync, wait_seconds=wait, state=state,
    )  # fmt: skip
    buckets = life_buckets(life, now=now)
    assert all(seconds > 0 for seconds in buckets.values())
    assert sum(buckets.values()) == pytest.approx(paid_seconds(life, now=now), rel=1e-9, abs=1e-6)
    assert not {Bucket.OPEN, Bucket.LOST} <= buckets.keys()
    totals = Totals()
    close_life(totals, life, now=now)
    assert totals.buckets == buckets
    assert totals.paid_seconds == paid_seconds(life, now=now)
    assert totals.cost == pytest.approx(totals.paid_seconds / 1_000)
