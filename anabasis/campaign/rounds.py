"""How a round is planned: pure functions of the spec, the roster and committed facts.

Planning is here; schedules are in `schedule`, the decision to close in `closing`; all are re-exported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from anabasis.campaign.closing import Close, Hopeless, Wait, deadline_seconds, decide_close
from anabasis.campaign.records import Assignment, CommittedContribution, Roster, RoundPlan
from anabasis.campaign.schedule import (
    dense_rounds,
    is_long,
    loss_spiked,
    lr_scale,
    merges_in_row,
    next_loss_mean,
    outer_settings,
    spec_warnings,
    target_reached,
)
from anabasis.campaign.spec import CampaignSpec

__all__ = [
    "Close",
    "Hopeless",
    "Pace",
    "Wait",
    "choose_evaluator",
    "deadline_seconds",
    "decide_close",
    "dense_rounds",
    "expect_seconds",
    "is_long",
    "loss_spiked",
    "lr_scale",
    "make_plan",
    "measure_paces",
    "merges_in_row",
    "next_loss_mean",
    "outer_settings",
    "plan_steps",
    "spec_warnings",
    "spread_partitions",
    "target_reached",
]

DENSE_STEPS_DIVISOR = 4
"""Rounds of the dense warm-up have a quarter of the inner steps: closer to synchronous training."""

SPEED_SMOOTHING = 0.5
"""Weight of the newest round in a slot's speed: follows a machine that slows down within two rounds."""

HISTORY_ROUNDS = 8
"""Rounds of history that a plan looks at; older ones weigh less than 1 % at `SPEED_SMOOTHING`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a slot's present machine is: inner steps per second of training, seconds of transfer per round."""

    steps_per_second: float
    sync_seconds: float


def make_plan(
    spec: CampaignSpec,
    *,
    round_number: int,
    roster: Roster | None = None,
    previous: RoundPlan | None = None,
    history: Sequence[Sequence[CommittedContribution]] = (),
) -> RoundPlan:
    """The plan of the round that starts after `round_number` merges.

    Args:
        roster: whose slots are planned for (None: the spec's).
        previous: the last plan, from which partitions move as little as possible.
        history: merged contributions of the last rounds, oldest first.
    """
    slots = roster.slots if roster else list(range(spec.fleet.slots))
    target = roster.target_rounds if roster else spec.target.rounds
    lanes = spread_partitions(spec.data.partitions, slots=slots, previous=_lanes_of(previous))
    paces = measure_paces(history, roster=roster)
    full = spec.training.inner_steps
    if round_number < dense_rounds(spec, target_rounds=target):
        full = max(1, full // DENSE_STEPS_DIVISOR)
    steps = plan_steps(spec, slots=slots, paces=paces, full=full)
    lr, momentum = outer_settings(spec, round_number, target_rounds=target)
    return RoundPlan(
        assignments={str(slot): Assignment(partitions=lanes[slot], inner_steps=steps[slot]) for slot in slots},
        expected_seconds=expect_seconds(spec, steps=steps, paces=paces),
        outer_lr=lr,
        outer_momentum=momentum,
        lr_scale=lr_scale(spec, round_number, target_rounds=target),
        evaluate_slot=choose_evaluator(spec, round_number=round_number, history=history, slots=slots),
    )


def spread_partitions(
    count: int, *, slots: Sequence[int], previous: Mapping[int, Sequence[int]] | None = None
) -> dict[int, list[int]]:
    """Partitions 0…count−1 over the slots: sizes differ by at most one, and as few as possible move."""
    before = previous or {}
    share, extra = divmod(count, len(slots))
    order = sorted(slots, key=lambda slot: (-len(before.get(slot, ())), slot))
    quota = {slot: share + (1 if rank < extra else 0) for rank, slot in enumerate(order)}
    lanes: dict[int, list[int]] = {}
    taken: set[int] = set()
    for slot in slots:
        kept = [lane for lane in sorted(before.get(slot, ())) if lane < count and lane not in taken][: quota[slot]]
        lanes[slot] = kept
        taken.update(kept)
    free = [lane for lane in range(count) if lane not in taken]
    if not before:  # a first plan deals lanes out like cards
        return {slot: free[rank :: len(slots)] for rank, slot in enumerate(slots)}
    for slot in slots:
        missing = quota[slot] - len(lanes[slot])
        lanes[slot] = sorted(lanes[slot] + free[:missing])
        free = free[missing:]
    return lanes


def measure_paces(history: Sequence[Sequence[CommittedContribution]], *, roster: Roster | None) -> dict[int, Pace]:
    """Smoothed pace of each slot's *present* machine; machines of the past say nothing of it."""
    present = {member.slot: member.attempt for member in roster.members} if roster else {}
    paces: dict[int, Pace] = {}
    for contributions in history:
        for item in contributions:
            header = item.header
            if present.get(header.slot) != header.attempt or header.train_seconds <= 0:
                continue
            new = Pace(header.steps / header.train_seconds, header.sync_seconds)
            old = paces.get(header.slot, new)
            paces[header.slot] = Pace(
                _smooth(old.steps_per_second, new.steps_per_second), _smooth(old.sync_seconds, new.sync_seconds)
            )
    return paces


def plan_steps(spec: CampaignSpec, *, slots: Sequence[int], paces: Mapping[int, Pace], full: int) -> dict[int, int]:
    """Inner steps by slot in proportion to speed (DyLU, arXiv:2401.09135), so that all finish together.

    Slots whose speed is not known yet count as the median. Deterministic campaigns do `full` steps everywhere.
    """
    training = spec.training
    speeds = {slot: paces[slot].steps_per_second for slot in slots if slot in paces}
    if training.deterministic or not training.work_proportional or not speeds:
        return dict.fromkeys(slots, full)
    fastest, middle = max(speeds.values()), median(speeds.values())
    least = min(training.min_inner_steps, full)
    return {slot: max(least, round(full * speeds.get(slot, middle) / fastest)) for slot in slots}


def expect_seconds(spec: CampaignSpec, *, steps: Mapping[int, int], paces: Mapping[int, Pace]) -> float | None:
    """Predicted time from one commit to the last contribution of the next round; None when no speed is known."""
    times = [
        steps[slot] / pace.steps_per_second + pace.sync_seconds
        for slot, pace in paces.items()
        if slot in steps and pace.steps_per_second > 0
    ]
    return max(times) + spec.rounds.poll_seconds if times else None


def choose_evaluator(
    spec: CampaignSpec,
    *,
    round_number: int,
    history: Sequence[Sequence[CommittedContribution]],
    slots: Sequence[int],
) -> int | None:
    """Who evaluates the new version: every few rounds another one of those who contributed last."""
    every = spec.checkpoint.evaluate_every_rounds
    if every == 0 or round_number == 0 or round_number % every or not history or not spec.data.validation_samples:
        return None
    able = sorted({item.header.slot for item in history[-1]} & set(slots))
    return able[round_number // every % len(able)] if able else None


def _lanes_of(plan: RoundPlan | None) -> dict[int, list[int]]:
    return {int(slot): item.partitions for slot, item in plan.assignments.items()} if plan else {}


def _smooth(old: float, new: float) -> float:
    return old + SPEED_SMOOTHING * (new - old)
