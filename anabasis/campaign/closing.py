"""When a round closes: a pure function that gives its reason in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from anabasis.campaign.records import Roster, RoundPlan
from anabasis.campaign.spec import CampaignSpec

UNKNOWN_SPEED_FACTOR = 3.0
"""In the first round, where no speed is known: wait for others so many times as long as the slowest arrival took."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet. `until` is when the answer changes without any news, or None."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Merge these slots now."""

    slots: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Everyone has reported and too little of it is sound: only a rollback helps."""

    reason: str


def decide_close(
    now: float,
    *,
    opened_at: float,
    plan: RoundPlan,
    roster: Roster,
    arrived: Mapping[int, float],
    rejected: Collection[int],
    spec: CampaignSpec,
) -> Wait | Close | Hopeless:
    """Whether the round closes.

    All nodes of the roster that are planned have reported: at once. Else with a quorum, at an adaptive deadline.
    Without a quorum never: unknown is not dead, so the round waits and says for whom.

    Args:
        arrived: slot → time (same clock as `now`) of its sound contribution.
        rejected: slots whose present node sent something that is not to be merged.
    """
    planned = {int(slot) for slot in plan.assignments}
    seen = _Seen(
        counted=planned & set(roster.slots) or planned,
        members={member.slot for member in roster.members} & planned,
        sound=set(arrived) & planned,
        bad=set(rejected) & planned - set(arrived),
    )
    if spec.training.deterministic:
        return _decide_deterministic(seen)
    return _decide_by_quorum(
        seen,
        now=now,
        opened_at=opened_at,
        wait_seconds=deadline_seconds(spec, plan=plan, slowest=max(arrived.values(), default=now) - opened_at),
        spec=spec,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Slots: that count for the quorum, that have a node, that sent something sound, that sent something bad."""

    counted: set[int]
    members: set[int]
    sound: set[int]
    bad: set[int]


def _decide_by_quorum(
    seen: _Seen, *, now: float, opened_at: float, wait_seconds: float, spec: CampaignSpec
) -> Wait | Close | Hopeless:
    reported = seen.sound | seen.bad
    awaited = seen.members - reported
    least = min(spec.rounds.min_contributors, len(seen.counted))
    needed = max(least, math.ceil(spec.rounds.quorum * len(seen.counted)))
    enough = len(seen.sound) >= least and len(reported) >= needed
    if enough and not awaited:
        return Close(tuple(sorted(seen.sound)), _all_reported(seen))
    if enough and now >= opened_at + wait_seconds:
        return Close(tuple(sorted(seen.sound)), f"deadline of {wait_seconds:.1f} s without {_slots(awaited)}")
    if enough:
        return Wait(f"{_slots(awaited)} until the deadline; quorum is met", until=opened_at + wait_seconds)
    if not awaited and seen.counted <= reported:
        return Hopeless(f"{_slots(seen.bad)} sent nothing sound, and the round needs {least} contributions")
    count = f"{len(seen.sound)} of {needed} contributions needed are here"
    if awaited:
        return Wait(f"{_slots(awaited)}: {count}")
    return Wait(f"a node in {_slots(seen.counted - reported)}: {count}")


def deadline_seconds(spec: CampaignSpec, *, plan: RoundPlan, slowest: float) -> float:
    """How long after its start a round with a quorum waits for the others."""
    wanted = (
        UNKNOWN_SPEED_FACTOR * slowest
        if plan.expected_seconds is None
        else spec.rounds.grace_factor * plan.expected_seconds
    )
    return min(max(wanted, spec.rounds.min_deadline_seconds), spec.rounds.max_deadline_seconds)


def _decide_deterministic(seen: _Seen) -> Wait | Close | Hopeless:
    bad, missing = seen.bad & seen.counted, seen.counted - seen.sound
    if bad:
        return Hopeless(f"{_slots(bad)} sent nothing sound, and a deterministic round needs every slot")
    if not missing:
        return Close(tuple(sorted(seen.sound)), _all_reported(seen))
    absent = missing - seen.members
    without = f"; no node in {_slots(absent)}" if absent else ""
    return Wait(f"{_slots(missing)}: deterministic rounds need every slot{without}")


def _all_reported(seen: _Seen) -> str:
    rejected = f", {_slots(seen.bad)} rejected" if seen.bad else ""
    return f"all {len(seen.sound | seen.bad)} nodes reported{rejected}"


def _slots(slots: Collection[int]) -> str:
    """In words; long lists are cut."""
    ordered = sorted(slots)
    shown = ", ".join(str(slot) for slot in ordered[:5])
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return f"slot{'s' if len(ordered) != 1 else ''} {shown}{more}"
