"""Each class of failure has its answer, and back-off grows to its limit and no further."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from anabasis import errors
from anabasis.campaign.policy import backoff_seconds, policy_for
from anabasis.campaign.spec import FailureSpec


def test_the_first_failure_waits_the_base_and_each_further_one_twice_as_long_up_to_the_maximum() -> None:
    spec = FailureSpec(backoff_seconds=3.0, max_backoff_seconds=20.0)
    assert [backoff_seconds(spec, failures_in_a_row=n) for n in range(-1, 6)] == [0, 0, 3, 6, 12, 20, 20]


@given(failures=st.integers(-5, 10**9), base=st.floats(1e-6, 1e6), factor=st.floats(1, 2))
def test_back_off_never_shrinks_and_never_exceeds_its_maximum(failures: int, base: float, factor: float) -> None:
    spec = FailureSpec(backoff_seconds=base, max_backoff_seconds=base * factor)
    wait = backoff_seconds(spec, failures_in_a_row=failures)
    assert 0 <= wait <= spec.max_backoff_seconds
    assert wait <= backoff_seconds(spec, failures_in_a_row=failures + 1)


@pytest.mark.parametrize("failure", ["Lost", "TrainerFrozen", "Preempted", "NodeDrained", "Fenced"])
def test_machines_come_and_go_free_of_charge(failure: str) -> None:
    policy = policy_for(failure)
    assert policy.free
    assert not any((policy.provision, policy.user_code, policy.permanent))


def test_a_failure_of_no_known_class_is_budgeted_like_a_failed_start() -> None:
    policy = policy_for("NeverHeardOf")
    assert (policy.kind, policy.provision, policy.free, policy.permanent) == ("node_failed", True, False, False)


@pytest.mark.parametrize("error", [errors.InvalidSpec, errors.StoreDenied, errors.QuotaError])
def test_errors_that_trying_again_cannot_help_are_permanent(error: type[errors.AnabasisError]) -> None:
    assert policy_for(error.__name__).permanent
    assert not error.retryable


@pytest.mark.parametrize("error", [errors.CapacityError, errors.Throttled])
def test_errors_of_a_provider_that_may_pass_count_against_the_slot(error: type[errors.AnabasisError]) -> None:
    assert policy_for(error.__name__).provision
    assert error.retryable
