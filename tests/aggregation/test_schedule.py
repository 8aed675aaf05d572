"""Schedules by round, targets, divergence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.campaign import schedule
from tests.aggregation.facts import a_roster, a_spec


def test_long_runs_get_the_papers_settings_by_a_ramp() -> None:
    spec = a_spec(target={"rounds": 500})
    settings = [schedule.outer_settings(spec, number) for number in range(500)]
    assert settings[0] == (1.0, 0.0)
    assert settings[-1] == (0.7, 0.9)
    momenta = [momentum for _, momentum in settings]
    assert momenta == sorted(momenta)


def test_short_runs_get_no_high_momentum() -> None:
    spec = a_spec(target={"rounds": 20})
    assert max(schedule.outer_settings(spec, number)[1] for number in range(20)) == 0.5
    assert schedule.outer_settings(spec, 19)[0] == 1.0


def test_what_the_spec_asks_for_is_done() -> None:
    spec = a_spec(training={"outer_lr": 0.6, "outer_momentum": 0.8, "dense_warmup_rounds": 2})
    assert schedule.outer_settings(spec, 1) == (1.0, 0.0)
    assert schedule.outer_settings(spec, 2) == (0.6, 0.8)


def test_a_short_run_that_asks_for_high_momentum_cold_is_warned() -> None:
    cold = a_spec(training={"outer_momentum": 0.9, "dense_warmup_rounds": 0})
    assert "cold start" in schedule.spec_warnings(cold)[0]
    assert schedule.spec_warnings(a_spec(training={"outer_momentum": 0.9})) == []
    assert schedule.spec_warnings(a_spec(target={"rounds": 500}, training={"outer_momentum": 0.9})) == []


@given(rounds=st.integers(1, 300), warmup=st.floats(0, 1), floor=st.floats(0, 1))
def test_the_inner_rate_rises_then_falls_and_stays_in_range(rounds: int, warmup: float, floor: float) -> None:
    spec = a_spec(target={"rounds": rounds}, training={"warmup_fraction": warmup, "final_lr_fraction": floor})
    scales = [schedule.lr_scale(spec, number) for number in range(rounds + 5)]
    assert all(0 < scale <= 1 or scale == floor for scale in scales)
    peak = scales.index(max(scales))
    assert scales[:peak] == sorted(scales[:peak])
    assert scales[peak:] == sorted(scales[peak:], reverse=True)


def test_after_the_target_the_rate_stays_at_its_floor() -> None:
    spec = a_spec(target={"rounds": 10}, training={"final_lr_fraction": 0.1})
    assert schedule.lr_scale(spec, 1_000) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"merged_rounds": 20, "tokens_total": 0, "loss": None}, "rounds"),
        ({"merged_rounds": 1, "tokens_total": 99, "loss": None}, "tokens"),
        ({"merged_rounds": 1, "tokens_total": 0, "loss": 1.4}, "loss"),
    ],
)
def test_whichever_target_comes_first_ends_training(facts: dict, word: str) -> None:
    roster = a_roster(target_tokens=99, target_loss=1.5)
    assert word in (schedule.target_reached(roster, **facts) or "")
    assert schedule.target_reached(roster, merged_rounds=19, tokens_total=98, loss=1.6) is None


def test_a_spike_counts_only_against_an_established_mean() -> None:
    assert schedule.loss_spiked(30.0, mean=4.0, rounds_seen=1, spike_factor=3) is None
    assert schedule.loss_spiked(11.9, mean=4.0, rounds_seen=9, spike_factor=3) is None
    assert "3 times" in (schedule.loss_spiked(12.1, mean=4.0, rounds_seen=9, spike_factor=3) or "")
    assert schedule.loss_spiked(math.nan, mean=None, rounds_seen=0, spike_factor=3)
