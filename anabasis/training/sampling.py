"""The order in which samples are trained, as a pure function: no list of the order exists anywhere.

Each epoch is a pseudo-random permutation of the training samples 0…n−1, keyed by (seed, epoch). Lane p of P
(a *partition*, as in a log) takes positions p, p + P, p + 2P, … of it: ⌈(n − p) / P⌉ samples, so lanes differ by at
most one and every sample belongs to exactly one lane of each epoch. A lane goes through its epochs one after the
other, at its own pace: offset o of lane p is its sample number o mod its size, in epoch o div its size.

So a lane and an offset name a sample for ever, whoever trains it, and a range of offsets is all the accounting
that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt

_MASK = (1 << 64) - 1

FEISTEL_ROUNDS = 6
"""Four make a pseudo-random permutation in theory (Luby and Rackoff 1988); two more make up for small domains."""


def sample_index(*, seed: int, partition: int, offset: int, partitions: int, samples: int) -> int:
    """The sample (0 … samples − 1) at an offset (0, 1, …) of a lane.

    Raises:
        ValueError: no such lane, a negative offset, or fewer samples than lanes.
    """
    size = lane_size(partition=partition, partitions=partitions, samples=samples)
    if offset < 0:
        raise ValueError(f"offset {offset} is negative")
    epoch, turn = divmod(offset, size)
    return permute(partition + turn * partitions, count=samples, key=mix(seed, epoch))


def lane_size(*, partition: int, partitions: int, samples: int) -> int:
    """Samples of one lane in each epoch (at least one).

    Raises:
        ValueError: no such lane, or fewer samples than lanes.
    """
    if not 0 <= partition < partitions:
        raise ValueError(f"partition {partition} is not one of 0 … {partitions - 1}")
    if samples < partitions:
        raise ValueError(f"{samples} samples cannot fill {partitions} partitions")
    return (samples - partition - 1) // partitions + 1


def permute(position: int, *, count: int, key: int) -> int:
    """The value at `position` of a pseudo-random permutation of 0 … count − 1.

    A Feistel network over a rectangle of at least `count` cells (two unequal halves: the generalised Feistel of
    Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"), walked until it lands inside: the rectangle
    has less than √count cells too many, so it hardly ever walks.
    """
    if not 0 <= position < count:
        raise ValueError(f"position {position} is not one of 0 … {count - 1}")
    width = isqrt(count - 1) + 1
    height = -(-count // width)
    value = position
    while True:
        value = _encipher(value, width=width, height=height, key=key)
        if value < count:
            return value


def mix(*parts: int) -> int:
    """64 well-mixed bits from a few integers (the finaliser of SplitMix64; Steele, Lea and Flood 2014)."""
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class SampleFeed:
    """The batches of one node in one round, and what they consumed.

    Lanes take turns, one sample at a time, beginning with those that are furthest behind: so lanes that started
    together stay within one sample of each other, however small the batches are.

    Args:
        offsets: lane → committed offset, for the lanes of this node.
        partitions: number of lanes of the campaign.
    """

    def __init__(self, *, seed: int, offsets: Mapping[int, int], partitions: int, samples: int) -> None:
        if not offsets:
            raise ValueError("a feed needs at least one partition")
        self._seed = seed
        self._partitions = partitions
        self._samples = samples
        self._start = dict(offsets)
        self._order = sorted(offsets, key=lambda lane: (offsets[lane], lane))

    def batch(self, number: int, *, size: int) -> list[int]:
        """Sample indices of batch `number` (0, 1, …) when all batches have `size` samples."""
        lanes = len(self._order)
        chosen: list[int] = []
        for turn in range(number * size, (number + 1) * size):
            cycle, place = divmod(turn, lanes)
            lane = self._order[place]
            chosen.append(
                sample_index(
                    seed=self._seed,
                    partition=lane,
                    offset=self._start[lane] + cycle,
                    partitions=self._partitions,
                    samples=self._samples,
                )
            )
        return chosen

    def batches(self, count: int, *, size: int) -> Iterator[list[int]]:
        """The first `count` batches of the round."""
        return (self.batch(number, size=size) for number in range(count))

    def consumed(self, samples: int) -> dict[int, tuple[int, int]]:
        """Lane → [first, end) offsets that the first `samples` samples of this feed are; idle lanes are left out."""
        cycles, rest = divmod(samples, len(self._order))
        ends = {lane: self._start[lane] + cycles + (1 if place < rest else 0) for place, lane in enumerate(self._order)}
        return {lane: (self._start[lane], end) for lane, end in sorted(ends.items()) if end > self._start[lane]}


def round_seed(*, seed: int, version: int, slot: int, rank: int = 0) -> int:
    """Seed of torch's generator (dropout and the like) for one process of one node in one round."""
    return mix(seed, version, slot, rank) >> 1


def _encipher(value: int, *, width: int, height: int, key: int) -> int:
    left, right = value % width, value // width
    for number in range(FEISTEL_ROUNDS):
        if number % 2:
            right = (right + mix(key, number, left)) % height
        else:
            left = (left + mix(key, number, right)) % width
    return right * width + left


def committed_offsets(offsets: Mapping[str, int], *, lanes: Sequence[int]) -> dict[int, int]:
    """The committed offsets of a manifest (keys are decimal text) for these lanes; 0 where nothing is committed."""
    return {lane: offsets.get(str(lane), 0) for lane in lanes}
