from __future__ import annotations

from typing import Any

import pytest

from anabasis.campaign.records import Roster, RosterMember, RoundPlan
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.training.lookout import Seat, seat_of
from anabasis.training.pace import Every, PollPace, round_seconds_allowed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waited(pace: PollPace, clock: Clock, *, seconds: float) -> list[float]:
    """The pauses of a wait of so long."""
    pauses: list[float] = []
    while clock.now < seconds:
        pauses.append(pace.next_seconds())
        clock.now += pauses[-1]
    return pauses


def test_short_waits_end_soon_and_long_waits_cost_few_requests() -> None:
    clock = Clock()
    pauses = waited(PollPace(longest_seconds=0.2, clock=clock), clock, seconds=600)
    assert pauses[0] <= 0.05
    assert max(pauses[:8]) <= 0.2
    assert max(pauses) <= 5.0
    assert len(pauses) < 250
    at = 0.0
    for pause in pauses:  # nobody waits 5 % longer than needed, beyond the spec's own poll time
        assert pause <= max(0.2, 0.05 * at) + 1e-9
        at += pause


def test_news_make_it_quick_again() -> None:
    clock = Clock()
    pace = PollPace(longest_seconds=0.2, clock=clock)
    waited(pace, clock, seconds=100)
    pace.reset()
    assert pace.next_seconds() <= 0.05


def test_a_spec_may_ask_for_quicker_polls() -> None:
    assert PollPace(longest_seconds=0.01).next_seconds() == 0.01


def test_every_is_due_at_once_and_then_by_the_clock() -> None:
    clock = Clock()
    every = Every(1.0, clock=clock)
    found = []
    for clock.now in (0.0, 0.5, 0.99, 1.0, 1.5, 7.0, 7.1):
        found.append(every())
    assert found == [True, False, False, True, False, True, False]


def spec(**sections: Any) -> CampaignSpec:
    return parse_spec({"name": "x", **sections})


@pytest.mark.parametrize(
    ("expected", "rounds", "allowed"),
    [
        (None, {}, float("inf")),
        (10.0, {}, 0.85 * 15),  # before the round's deadline of 1.5 times the prediction
        (0.1, {}, 0.85 * 2),  # rounds never close before 2 s
        (10.0, {"grace_factor": 50}, 20.0),  # however patient the round is
        (10.0, {"max_deadline_seconds": 8}, 0.85 * 8),
    ],
)
def test_a_slow_node_stops_in_time_for_its_upload(
    expected: float | None, rounds: dict[str, float], allowed: float
) -> None:
    plan = RoundPlan(assignments={}, expected_seconds=expected, outer_lr=1, outer_momentum=0)
    assert round_seconds_allowed(spec(rounds=rounds), plan) == pytest.approx(allowed)


def test_deterministic_rounds_are_never_cut_short() -> None:
    plan = RoundPlan(assignments={}, expected_seconds=1.0, outer_lr=1, outer_momentum=0)
    assert round_seconds_allowed(spec(training={"deterministic": True}), plan) == float("inf")


ME = RosterMember(slot=1, attempt=3, nonce="mine")


@pytest.mark.parametrize(
    ("holder", "attempts", "seat"),
    [
        (ME, {}, "held"),
        (None, {}, "empty"),
        (None, {"1": 3}, "empty"),
        (None, {"1": 4}, "lost"),
        (RosterMember(slot=1, attempt=2, nonce="old"), {}, "empty"),
        (RosterMember(slot=1, attempt=3, nonce="other"), {}, "lost"),
        (RosterMember(slot=1, attempt=4, nonce="new"), {}, "lost"),
        (RosterMember(slot=2, attempt=9, nonce="neighbour"), {}, "empty"),
    ],
)
def test_who_holds_a_slot(holder: RosterMember | None, attempts: dict[str, int], seat: Seat) -> None:
    roster = Roster(
        campaign="x", generation=1, phase="training", slots=[1], target_rounds=1, attempts=attempts,
        members=[holder] if holder else [],
    )  # fmt: skip
    assert seat_of(roster, member=ME) == seat


def test_before_the_first_roster_there_is_no_seat() -> None:
    assert seat_of(None, member=ME) == "empty"
