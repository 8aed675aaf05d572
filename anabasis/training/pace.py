"""How long a node may train, and how often it looks for the next version."""

from __future__ import annotations

import time
from collections.abc import Callable

from anabasis.campaign.records import RoundPlan
from anabasis.campaign.spec import CampaignSpec

SHARE_OF_DEADLINE = 0.85
"""A node that is slower than planned stops early enough for its upload to arrive before the round closes."""

LATE_FACTOR = 2.0
"""And never trains longer than this multiple of the planned time, however patient the round is."""

FIRST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 5.0
POLL_SHARE = 0.05
"""A poll waits at most this share of the time waited so far: long rounds cost few requests and no noticeable time."""

GROWTH = 1.5


def round_seconds_allowed(spec: CampaignSpec, plan: RoundPlan) -> float:
    """Seconds after which a round's training ends early, with what is done; infinite where all must be done.

    Deterministic campaigns do exactly the planned steps. Without a prediction (the first round) the round's own
    closing is the only limit.
    """
    if spec.training.deterministic or plan.expected_seconds is None:
        return float("inf")
    deadline = min(
        max(spec.rounds.grace_factor * plan.expected_seconds, spec.rounds.min_deadline_seconds),
        spec.rounds.max_deadline_seconds,
    )
    late = max(LATE_FACTOR * plan.expected_seconds, spec.rounds.min_deadline_seconds)
    return min(SHARE_OF_DEADLINE * deadline, late)


class PollPace:
    """Seconds to wait before the next look at the store: short at first, longer the longer nothing happens.

    Args:
        longest_seconds: the spec's `rounds.poll_seconds`; exceeded only when `POLL_SHARE` allows more.
    """

    def __init__(self, *, longest_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest_seconds
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Something happened."""
        self._since = self._clock()
        self._next = min(FIRST_POLL_SECONDS, self._longest)

    def next_seconds(self) -> float:
        """How long to wait now."""
        patient = min(POLL_SHARE * (self._clock() - self._since), LONGEST_POLL_SECONDS)
        seconds = max(min(self._next, self._longest), patient)
        self._next *= GROWTH
        return seconds


class Every:
    """True at most once in so many seconds; at first at once."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: float | None = None

    def __call__(self) -> bool:
        now = self._clock()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True
