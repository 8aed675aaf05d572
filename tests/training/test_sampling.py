from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.training.sampling import SampleFeed, lane_size, mix, permute, round_seed, sample_index

seeds = st.integers(0, 2**31 - 1)
shapes = st.integers(1, 40).flatmap(lambda partitions: st.tuples(st.just(partitions), st.integers(partitions, 400)))


def lane_epoch(seed: int, partition: int, epoch: int, partitions: int, samples: int) -> list[int]:
    size = lane_size(partition=partition, partitions=partitions, samples=samples)
    return [
        sample_index(seed=seed, partition=partition, offset=epoch * size + turn, partitions=partitions, samples=samples)
        for turn in range(size)
    ]


@given(count=st.integers(1, 700), key=st.integers(0, 2**64 - 1))
def test_the_order_is_a_permutation(count: int, key: int) -> None:
    assert sorted(permute(i, count=count, key=key) for i in range(count)) == list(range(count))


@given(seed=seeds, shape=shapes, epoch=st.integers(0, 5))
def test_every_sample_is_in_exactly_one_lane_of_each_epoch(seed: int, shape: tuple[int, int], epoch: int) -> None:
    partitions, samples = shape
    used = [i for lane in range(partitions) for i in lane_epoch(seed, lane, epoch, partitions, samples)]
    assert sorted(used) == list(range(samples))


@given(shape=shapes)
def test_lanes_differ_by_at_most_one_sample(shape: tuple[int, int]) -> None:
    partitions, samples = shape
    sizes = [lane_size(partition=lane, partitions=partitions, samples=samples) for lane in range(partitions)]
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_each_epoch_and_each_seed_shuffles_anew() -> None:
    orders = {tuple(lane_epoch(seed, 0, epoch, 1, 200)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_has_no_visible_structure() -> None:
    """Neighbours in the order lie as far apart as random ones do: a third of the range on average."""
    count = 10_000
    order = [permute(i, count=count, key=mix(1, 0)) for i in range(count)]
    distance = sum(abs(a - b) for a, b in itertools.pairwise(order)) / (count - 1)
    assert distance == pytest.approx(count / 3, rel=0.03)
    assert sum(a == b for a, b in enumerate(order)) < 10


def test_the_order_is_fixed_for_ever() -> None:
    """A change here would retrain or skip data of every running campaign."""
    order = [sample_index(seed=7, partition=3, offset=o, partitions=8, samples=1000) for o in range(6)]
    assert order == [527, 420, 34, 721, 194, 430]


def test_a_huge_data_set_costs_nothing() -> None:
    index = sample_index(seed=0, partition=5, offset=10**12, partitions=4096, samples=10**15)
    assert 0 <= index < 10**15


@pytest.mark.parametrize(
    ("partition", "offset", "partitions", "samples"), [(4, 0, 4, 10), (-1, 0, 4, 10), (0, -1, 4, 10), (0, 0, 4, 3)]
)
def test_impossible_places_are_refused(partition: int, offset: int, partitions: int, samples: int) -> None:
    with pytest.raises(ValueError, match=r"partition|offset|samples"):
        sample_index(seed=0, partition=partition, offset=offset, partitions=partitions, samples=samples)


@given(
    seed=seeds,
    shape=shapes,
    data=st.data(),
    size=st.integers(1, 9),
    count=st.integers(0, 12),
)
def test_what_a_feed_says_it_consumed_is_what_it_gave(
    seed: int, shape: tuple[int, int], data: st.DataObject, size: int, count: int
) -> None:
    partitions, samples = shape
    lanes = data.draw(st.lists(st.integers(0, partitions - 1), min_size=1, unique=True))
    offsets = {lane: data.draw(st.integers(0, 50)) for lane in lanes}
    feed = SampleFeed(seed=seed, offsets=offsets, partitions=partitions, samples=samples)
    given_out = [index for batch in feed.batches(count, size=size) for index in batch]
    consumed = feed.consumed(count * size)
    expected = [
        sample_index(seed=seed, partition=lane, offset=offset, partitions=partitions, samples=samples)
        for lane, (first, end) in consumed.items()
        for offset in range(first, end)
    ]
    assert sorted(given_out) == sorted(expected)
    assert all(first == offsets[lane] for lane, (first, _) in consumed.items())


def test_small_batches_keep_lanes_together() -> None:
    """Three samples a round over eight lanes: no lane starves."""
    offsets = dict.fromkeys(range(8), 0)
    for _ in range(40):
        feed = SampleFeed(seed=0, offsets=offsets, partitions=8, samples=100)
        offsets |= {lane: end for lane, (_, end) in feed.consumed(3).items()}
    assert set(offsets.values()) == {15}


def test_an_empty_feed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SampleFeed(seed=0, offsets={}, partitions=1, samples=1)


def test_round_seeds_differ_by_everything_they_depend_on() -> None:
    seeds = {
        round_seed(seed=s, version=v, slot=n, rank=r) for s in (0, 1) for v in (0, 1) for n in (0, 1) for r in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
