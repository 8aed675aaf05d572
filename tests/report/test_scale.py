from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabasis.report.scale import axis, thinned

numbers = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False)


@given(st.lists(numbers, max_size=50), st.integers(2, 20))
def test_an_axis_holds_every_value_and_has_few_ticks(values: list[float], ticks: int) -> None:
    scale = axis(values, ticks=ticks)
    assert scale.low < scale.high
    assert all(-1e-9 <= scale.at(value) <= 1 + 1e-9 for value in values)
    assert 1 <= len(scale.ticks) <= ticks + 2


def test_ticks_are_round_and_told_apart() -> None:
    scale = axis([2.31, 2.34], ticks=4)
    assert [scale.label(tick) for tick in scale.ticks] == ["2.31", "2.32", "2.33", "2.34"]
    large = axis([0, 2_000_000], ticks=4, whole=True)
    assert [large.label(tick) for tick in large.ticks] == ["0", "0.5M", "1M", "1.5M", "2M"]


def test_a_single_count_makes_an_axis_of_whole_numbers() -> None:
    scale = axis([3.0], ticks=8, whole=True)
    assert scale.ticks == (3.0, 4.0)


@given(st.lists(numbers, min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(values: list[float], limit: int) -> None:
    points = [(float(index), value) for index, value in enumerate(values)]
    kept = thinned(points, limit=limit)
    assert len(kept) <= max(limit, 4)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert min(y for _, y in kept) == min(values)
    assert max(y for _, y in kept) == max(values)
    assert kept == sorted(kept, key=lambda point: point[0])
