"""Planning: partitions, work, evaluation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.campaign import rounds
from tests.aggregation.facts import a_roster, a_spec, committed


@given(count=st.integers(1, 200), slots=st.integers(1, 40))
def test_every_partition_has_exactly_one_slot_and_sizes_differ_by_at_most_one(count: int, slots: int) -> None:
    lanes = rounds.spread_partitions(count, slots=range(slots))
    assert sorted(lane for lane_list in lanes.values() for lane in lane_list) == list(range(count))
    sizes = [len(lane_list) for lane_list in lanes.values()]
    assert max(sizes) - min(sizes) <= 1


@given(
    count=st.integers(1, 100),
    before=st.sets(st.integers(0, 20), min_size=1),
    after=st.sets(st.integers(0, 20), min_size=1),
)
def test_when_slots_change_partitions_stay_spread_and_few_move(count: int, before: set[int], after: set[int]) -> None:
    old = rounds.spread_partitions(count, slots=sorted(before))
    new = rounds.spread_partitions(count, slots=sorted(after), previous=old)
    assert sorted(lane for lane_list in new.values() for lane in lane_list) == list(range(count))
    sizes = [len(lane_list) for lane_list in new.values()]
    assert max(sizes) - min(sizes) <= 1
    kept = sum(len(set(old.get(slot, ())) & set(lane_list)) for slot, lane_list in new.items())
    share, extra = divmod(count, len(after))
    richest = sorted((len(old.get(slot, ())) for slot in after), reverse=True)
    most = sum(min(had, share + (rank < extra)) for rank, had in enumerate(richest))
    assert kept == most


def test_the_same_slots_keep_their_partitions() -> None:
    old = rounds.spread_partitions(32, slots=range(5))
    assert rounds.spread_partitions(32, slots=range(5), previous=old) == {s: sorted(v) for s, v in old.items()}


def test_a_slow_node_does_fewer_steps_in_proportion() -> None:
    spec = a_spec(training={"inner_steps": 20, "dense_warmup_rounds": 0})
    history = [[committed(slot=0, steps=20, train_seconds=2.0), committed(slot=1, steps=20, train_seconds=8.0)]]
    plan = rounds.make_plan(spec, round_number=1, roster=a_roster(slots=2), history=history)
    assert [plan.assignments[s].inner_steps for s in "01"] == [20, 5]


def test_a_newcomer_is_planned_as_the_median() -> None:
    spec = a_spec(training={"inner_steps": 20, "dense_warmup_rounds": 0})
    history = [[committed(slot=0, steps=20, train_seconds=2.0), committed(slot=1, steps=20, train_seconds=4.0)]]
    plan = rounds.make_plan(spec, round_number=1, roster=a_roster(slots=3), history=history)
    assert plan.assignments["2"].inner_steps == 15


def test_the_speed_of_a_slots_former_machine_is_forgotten() -> None:
    spec = a_spec(training={"inner_steps": 20, "dense_warmup_rounds": 0})
    history = [[committed(slot=0, steps=20, train_seconds=2.0), committed(slot=1, steps=20, train_seconds=200.0)]]
    roster = a_roster(slots=2)
    moved = roster.model_copy(
        update={"members": [roster.members[0], roster.members[1].model_copy(update={"attempt": 2})]}
    )
    plan = rounds.make_plan(spec, round_number=1, roster=moved, history=history)
    assert plan.assignments["1"].inner_steps == 20


def test_deterministic_campaigns_plan_fixed_steps() -> None:
    spec = a_spec(training={"inner_steps": 20, "dense_warmup_rounds": 0, "deterministic": True})
    history = [[committed(slot=0, steps=20, train_seconds=2.0), committed(slot=1, steps=20, train_seconds=8.0)]]
    plan = rounds.make_plan(spec, round_number=1, roster=a_roster(slots=2), history=history)
    assert {item.inner_steps for item in plan.assignments.values()} == {20}


def test_expected_time_is_that_of_the_slowest_with_its_transfers() -> None:
    spec = a_spec(training={"inner_steps": 20, "dense_warmup_rounds": 0, "work_proportional": False})
    history = [[committed(slot=0, steps=20, train_seconds=2.0), committed(slot=1, steps=20, train_seconds=8.0)]]
    plan = rounds.make_plan(spec, round_number=1, roster=a_roster(slots=2), history=history)
    assert plan.expected_seconds == pytest.approx(8.0 + 1.0 + spec.rounds.poll_seconds)


def test_no_expectation_before_the_first_contribution() -> None:
    assert rounds.make_plan(a_spec(), round_number=0).expected_seconds is None


def test_first_rounds_are_dense() -> None:
    spec = a_spec(target={"rounds": 20}, training={"inner_steps": 20})
    plans = [rounds.make_plan(spec, round_number=number) for number in range(20)]
    assert [plan.assignments["0"].inner_steps for plan in plans[:5]] == [5, 5, 5, 5, 20]
    assert all((plan.outer_lr, plan.outer_momentum) == (1.0, 0.0) for plan in plans[:4])


def test_evaluation_rotates_over_the_last_contributors() -> None:
    spec = a_spec(checkpoint={"evaluate_every_rounds": 5})
    history = [[committed(slot=1), committed(slot=3)]]
    chosen = [
        rounds.make_plan(spec, round_number=number, roster=a_roster(), history=history).evaluate_slot
        for number in range(0, 16)
    ]
    assert [number for number, slot in enumerate(chosen) if slot is not None] == [5, 10, 15]
    assert [slot for slot in chosen if slot is not None] == [3, 1, 3]


def test_an_extended_target_stretches_the_schedule() -> None:
    spec = a_spec(target={"rounds": 20})
    short = rounds.make_plan(spec, round_number=19, roster=a_roster())
    longer = rounds.make_plan(spec, round_number=19, roster=a_roster(target_rounds=40))
    assert longer.lr_scale > short.lr_scale
