"""When a round closes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabasis.campaign.records import Roster, RoundPlan
from anabasis.campaign.rounds import Close, Hopeless, Wait, decide_close, make_plan
from tests.aggregation.facts import a_roster, a_spec


def decide(
    *,
    now: float = 1.0,
    roster: Roster | None = None,
    arrived: dict[int, float] | None = None,
    rejected: tuple[int, ...] = (),
    expected: float | None = 10.0,
    slots: int = 4,
    **sections: Any,
) -> Wait | Close | Hopeless:
    spec = a_spec(fleet={"slots": slots}, **sections)
    plan = make_plan(spec, round_number=0).model_copy(update={"expected_seconds": expected})
    return decide_close(
        now,
        opened_at=0.0,
        plan=plan,
        roster=roster or a_roster(slots=slots),
        arrived=arrived or {},
        rejected=rejected,
        spec=spec,
    )


def test_all_nodes_present_close_at_once() -> None:
    assert decide(arrived=dict.fromkeys(range(4), 0.5)) == Close((0, 1, 2, 3), "all 4 nodes reported")


def test_a_lost_node_leaves_the_roster_and_the_rest_close_at_once() -> None:
    verdict = decide(roster=a_roster(present=[0, 2, 3]), arrived={0: 0.5, 2: 0.5, 3: 0.5})
    assert isinstance(verdict, Close)
    assert verdict.slots == (0, 2, 3)


def test_below_quorum_the_round_waits_for_ever_and_says_for_whom() -> None:
    verdict = decide(now=1e9, arrived={0: 0.5})
    assert isinstance(verdict, Wait)
    assert verdict.until is None
    assert "slots 1, 2, 3" in verdict.reason
    assert "1 of 2" in verdict.reason


def test_below_quorum_without_nodes_it_waits_for_nodes() -> None:
    verdict = decide(now=1e9, roster=a_roster(present=[0]), arrived={0: 0.5})
    assert isinstance(verdict, Wait)
    assert "a node in slots 1, 2, 3" in verdict.reason


def test_with_quorum_it_waits_until_the_grace_is_over() -> None:
    verdict = decide(now=14.9, arrived={0: 9.0, 1: 9.0})
    assert verdict == Wait("slots 2, 3 until the deadline; quorum is met", until=15.0)
    closed = decide(now=15.0, arrived={0: 9.0, 1: 9.0})
    assert isinstance(closed, Close)
    assert "deadline" in closed.reason


def test_the_deadline_stays_between_its_limits() -> None:
    early = decide(now=1.9, arrived={0: 0.1, 1: 0.1}, expected=0.01)
    assert early == Wait("slots 2, 3 until the deadline; quorum is met", until=2.0)
    late = decide(now=31.0, arrived={0: 9.0, 1: 9.0}, expected=1e6, rounds={"max_deadline_seconds": 30})
    assert isinstance(late, Close)


def test_without_a_known_speed_the_slowest_arrival_sets_the_deadline() -> None:
    verdict = decide(now=20.0, arrived={0: 2.0, 1: 9.0}, expected=None)
    assert isinstance(verdict, Wait)
    assert verdict.until == 27.0


def test_deterministic_rounds_wait_for_every_slot() -> None:
    training = {"deterministic": True}
    waiting = decide(now=1e9, roster=a_roster(present=[0, 1, 2]), arrived={0: 1, 1: 1, 2: 1}, training=training)
    assert isinstance(waiting, Wait)
    assert "no node in slot 3" in waiting.reason
    assert isinstance(decide(arrived=dict.fromkeys(range(4), 1.0), training=training), Close)
    assert isinstance(decide(rejected=(2,), training=training), Hopeless)


def test_a_rejected_contribution_is_not_waited_for() -> None:
    assert decide(arrived={0: 1, 1: 1, 2: 1}, rejected=(3,)) == Close(
        (0, 1, 2), "all 4 nodes reported, slot 3 rejected"
    )


def test_a_rejected_contribution_counts_as_reported_but_not_as_a_contribution() -> None:
    assert isinstance(decide(arrived={0: 1}, rejected=(1, 2, 3)), Close)
    assert isinstance(decide(rejected=(0, 1, 2, 3)), Hopeless)


def test_scaling_up_does_not_strand_a_round_whose_plan_has_fewer_slots() -> None:
    roster = a_roster(slots=16)
    assert isinstance(decide(roster=roster, arrived={0: 1, 1: 1, 2: 1, 3: 1}), Close)


def test_scaling_down_counts_only_the_slots_that_stay() -> None:
    roster = a_roster(slots=2, present=[0, 1])
    assert isinstance(decide(roster=roster, arrived={0: 1, 1: 1}), Close)


@given(
    slots=st.integers(1, 8),
    present=st.sets(st.integers(0, 7)),
    arrived=st.sets(st.integers(0, 7)),
    rejected=st.sets(st.integers(0, 7)),
    now=st.floats(0, 1e6),
    quorum=st.floats(0.01, 1),
    least=st.integers(1, 8),
    deterministic=st.booleans(),
)
def test_it_only_ever_closes_with_a_quorum_of_sound_contributions(  # noqa: PLR0917
    slots: int,
    present: set[int],
    arrived: set[int],
    rejected: set[int],
    now: float,
    quorum: float,
    least: int,
    deterministic: bool,
) -> None:
    spec = a_spec(
        fleet={"slots": slots},
        rounds={"quorum": quorum, "min_contributors": min(least, slots)},
        training={"deterministic": deterministic},
    )
    plan: RoundPlan = make_plan(spec, round_number=0)
    verdict = decide_close(
        now,
        opened_at=0.0,
        plan=plan,
        roster=a_roster(slots=slots, present=sorted(present)),
        arrived=dict.fromkeys(arrived, 0.0),
        rejected=rejected,
        spec=spec,
    )
    sound = {slot for slot in arrived if slot < slots}
    if isinstance(verdict, Close):
        assert set(verdict.slots) == sound
        assert len(sound) >= spec.rounds.min_contributors
        assert len(sound | {slot for slot in rejected if slot < slots}) >= quorum * slots
        assert not deterministic or len(sound) == slots
    if isinstance(verdict, Wait) and verdict.until is not None:
        assert verdict.until > now
    if isinstance(verdict, Hopeless):
        assert rejected
