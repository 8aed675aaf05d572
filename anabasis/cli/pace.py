"""How fast a campaign goes: tokens per second, seconds per round, time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_SECONDS = 120.0
"""Speed now, not since the start: nodes come and go."""

MAX_SAMPLES = 400


@dataclass(frozen=True, slots=True)
class Pace:
    """None where too little is known."""

    tokens_per_second: float | None = None
    seconds_per_round: float | None = None

    def seconds_left(self, rounds_left: int) -> float | None:
        return None if self.seconds_per_round is None else rounds_left * self.seconds_per_round


class Samples:
    """Of (time, rounds, tokens): one whenever rounds advanced."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=MAX_SAMPLES)

    def add(self, at: float, *, rounds: int, tokens: int) -> None:
        """Later samples with the same or fewer rounds say nothing new, or tell of a rollback."""
        if self._samples and rounds <= self._samples[-1][1]:
            return
        self._samples.append((at, rounds, tokens))

    def add_all(self, samples: Iterable[tuple[float, int, int]]) -> None:
        for at, rounds, tokens in samples:
            self.add(at, rounds=rounds, tokens=tokens)

    def pace(self) -> Pace:
        """Over the newest `WINDOW_SECONDS`, or over the newest two samples when rounds are longer than that."""
        if len(self._samples) < 2:
            return Pace()
        last_at, last_rounds, last_tokens = self._samples[-1]
        first = self._samples[-2]
        for sample in reversed(self._samples):
            if last_at - sample[0] > WINDOW_SECONDS:
                break
            first = sample if sample[1] < last_rounds else first
        seconds, rounds = last_at - first[0], last_rounds - first[1]
        if seconds <= 0:
            return Pace()
        return Pace(tokens_per_second=max(0, last_tokens - first[2]) / seconds, seconds_per_round=seconds / rounds)
