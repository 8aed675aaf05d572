"""Loss curves and pace of running campaigns, read from a real store."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.campaign.records import keys
from anabasis.cli import curves
from anabasis.cli.curves import MAX_POINTS, Curve
from anabasis.cli.pace import WINDOW_SECONDS, Pace, Samples
from tests.cli.committed import SECONDS_PER_ROUND, TOKENS_PER_ROUND, write_versions


async def test_a_curve_has_every_version_of_a_short_campaign(tmp_path: Path) -> None:
    write_versions(tmp_path, "demo", first=0, last=12, ended_at=1_000.0, rollbacks=frozenset({5}))
    curve = Curve(tmp_path.as_uri(), "demo")
    await curve.refresh()
    assert curve.problem == ""
    assert [point.version for point in curve.points] == list(range(13))
    assert [point.kind for point in curve.points if point.loss is None] == ["initial", "rollback"]
    assert curve.points[10].validation_loss == 2.1


async def test_a_curve_grows_by_what_was_committed_since(tmp_path: Path) -> None:
    write_versions(tmp_path, "demo", first=0, last=3, ended_at=1_000.0)
    curve = Curve(tmp_path.as_uri(), "demo")
    await curve.refresh()
    write_versions(tmp_path, "demo", first=4, last=6, ended_at=1_012.0)
    await curve.refresh()
    await curve.refresh()
    assert [point.version for point in curve.points] == list(range(7))


async def test_long_campaigns_are_sampled_and_the_newest_version_is_there(tmp_path: Path) -> None:
    write_versions(tmp_path, "demo", first=0, last=1_000, ended_at=1_000.0)
    curve = Curve(tmp_path.as_uri(), "demo")
    await curve.refresh()
    assert len(curve.points) <= MAX_POINTS
    assert curve.points[-1].version == 1_000
    gaps = {b.version - a.version for a, b in zip(curve.points, curve.points[1:], strict=False)}
    assert len(gaps) == 1


async def test_watching_for_long_does_not_pile_up_points(tmp_path: Path) -> None:
    curve = Curve(tmp_path.as_uri(), "demo")
    for first in range(0, 1_200, 100):
        write_versions(tmp_path, "demo", first=first, last=first + 99, ended_at=1_000.0 + first)
        await curve.refresh()
    versions = [point.version for point in curve.points]
    assert len(versions) <= 2 * MAX_POINTS
    assert versions == sorted(versions)
    assert versions[-1] == 1_199


async def test_a_version_that_cannot_be_read_is_named_and_mends_itself(tmp_path: Path) -> None:
    root = write_versions(tmp_path, "demo", first=0, last=3, ended_at=1_000.0)
    store = root.child(keys.campaign_root("demo"))
    good = store.get(keys.version(2))
    store.put(keys.version(2), b"{}")
    curve = Curve(tmp_path.as_uri(), "demo")
    await curve.refresh()
    assert curve.points == []
    assert curve.problem != ""
    store.put(keys.version(2), good)
    await curve.refresh()
    assert len(curve.points) == 4
    assert curve.problem == ""


async def test_a_store_of_another_machine_is_said_and_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    for url in (folder.as_uri(), str(folder)):
        curve = Curve(url, "demo")
        await curve.refresh()
        assert "is not on this machine" in curve.problem
    assert not folder.exists()


async def test_a_store_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "REFRESH_SECONDS", 0.05)
    let_go, calls = threading.Event(), []

    def hang(_: Curve) -> None:
        calls.append(1)
        let_go.wait(30)

    monkeypatch.setattr(Curve, "_read", hang)
    curve = Curve(tmp_path.as_uri(), "demo")
    await asyncio.wait_for(curve.refresh(), 10)
    assert "is slow" in curve.problem
    await curve.refresh()
    assert len(calls) == 1  # one hanging reader is enough
    let_go.set()


def _samples(*samples: tuple[float, int, int]) -> Samples:
    made = Samples()
    made.add_all(samples)
    return made


def test_pace_needs_two_rounds() -> None:
    assert _samples().pace() == Pace()
    assert _samples((1.0, 1, 10)).pace() == Pace()
    assert _samples((1.0, 1, 10), (9.0, 1, 10)).pace() == Pace()
    assert Pace().seconds_left(5) is None


def test_pace_is_that_of_the_newest_window() -> None:
    slow = [(index * 100.0, index, index * 10) for index in range(5)]
    fast = [(400.0 + index, 4 + index, 40 + index * 50) for index in range(1, 130)]
    pace = _samples(*slow, *fast).pace()
    assert pace.seconds_per_round == pytest.approx(1.0)
    assert pace.tokens_per_second == pytest.approx(50.0)
    assert pace.seconds_left(30) == pytest.approx(30.0)


def test_pace_of_rounds_longer_than_the_window() -> None:
    pace = _samples((0.0, 1, 100), (5 * WINDOW_SECONDS, 2, 700)).pace()
    assert pace.seconds_per_round == pytest.approx(5 * WINDOW_SECONDS)
    assert pace.tokens_per_second == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e9, allow_nan=False), st.integers(0, 10**6), st.integers(0, 10**12)), max_size=30)
)
def test_pace_is_never_negative_whatever_clocks_say(samples: list[tuple[float, int, int]]) -> None:
    pace = _samples(*samples).pace()
    assert pace.tokens_per_second is None or pace.tokens_per_second >= 0
    assert pace.seconds_per_round is None or pace.seconds_per_round > 0


async def test_pace_from_committed_versions(tmp_path: Path) -> None:
    write_versions(tmp_path, "demo", first=0, last=20, ended_at=time.time())
    curve = Curve(tmp_path.as_uri(), "demo")
    await curve.refresh()
    samples = _samples(*((point.at, point.rounds, point.tokens) for point in curve.points))
    assert samples.pace().seconds_per_round == pytest.approx(SECONDS_PER_ROUND)
    assert samples.pace().tokens_per_second == pytest.approx(TOKENS_PER_ROUND / SECONDS_PER_ROUND)
