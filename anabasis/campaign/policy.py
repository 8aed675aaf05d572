"""What each class of failure means: its budget, its back-off, and what is decided."""

from __future__ import annotations

from dataclasses import dataclass

from anabasis.campaign.spec import FailureSpec


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How a node failure is answered.

    Attributes:
        kind: name in incidents.
        provision: counts against `failures.provision` of the slot.
        user_code: counts against `failures.user_code` of the campaign.
        permanent: trying again cannot help (quota zero, credentials, configuration).
        free: machines come and go; no budget and no back-off.
    """

    kind: str
    provision: bool = False
    user_code: bool = False
    permanent: bool = False
    free: bool = False


_POLICIES = {
    "Lost": FailurePolicy("lost", free=True),
    "TrainerFrozen": FailurePolicy("frozen", free=True),
    "TrainerCrashed": FailurePolicy("trainer_crashed"),
    "Preempted": FailurePolicy("preempted", free=True),
    "NodeDrained": FailurePolicy("drained", free=True),
    "Fenced": FailurePolicy("fenced", free=True),
    "UserCodeError": FailurePolicy("user_code", user_code=True),
    "BootFailed": FailurePolicy("provision_failed", provision=True),
    "ProviderError": FailurePolicy("provision_failed", provision=True),
    "Throttled": FailurePolicy("throttled", provision=True),
    "CapacityError": FailurePolicy("capacity", provision=True),
    "QuotaError": FailurePolicy("quota", permanent=True),
    "InvalidSpec": FailurePolicy("configuration", permanent=True),
    "StoreDenied": FailurePolicy("store_denied", permanent=True),
}


def policy_for(failure: str) -> FailurePolicy:
    """The policy of a failure type; an unknown type is treated as a crash (backed off, then replaced)."""
    return _POLICIES.get(failure, FailurePolicy("node_failed", provision=True))


def retry_seconds(*, failures_in_a_row: int) -> float:
    """Pause before a job, a roster or a journal is tried again: 1 s, doubling to a minute. Temporal's own retries
    came before, but it has none for what a store denies, which fails within milliseconds."""
    return min(60.0, 2.0 ** min(failures_in_a_row - 1, 6))


def backoff_seconds(spec: FailureSpec, *, failures_in_a_row: int) -> float:
    """Pause before the next start of a slot: none after the first failure's base, doubling to the maximum."""
    if failures_in_a_row <= 0:
        return 0.0
    return min(spec.max_backoff_seconds, spec.backoff_seconds * 2.0 ** min(failures_in_a_row - 1, 30))
