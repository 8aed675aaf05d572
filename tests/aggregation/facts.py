"""Small facts for tests of rounds and merges."""

from __future__ import annotations

from typing import Any

from anabasis.campaign.records import CommittedContribution, ContributionHeader, Roster, RosterMember
from anabasis.campaign.spec import CampaignSpec, parse_spec


def a_spec(**sections: Any) -> CampaignSpec:
    """A spec; keyword arguments are its sections."""
    return parse_spec({"name": "demo", **sections})


def a_roster(
    *, slots: int = 4, present: list[int] | None = None, attempt: int = 1, target_rounds: int = 20, **fields: Any
) -> Roster:
    """A roster of `slots` slots, in which `present` ones (default all) have a node."""
    seated = range(slots) if present is None else present
    return Roster(
        campaign="demo",
        generation=1,
        phase="training",
        slots=list(range(slots)),
        members=[RosterMember(slot=slot, attempt=attempt, nonce=f"n{slot}-{attempt}") for slot in seated],
        target_rounds=target_rounds,
        **fields,
    )


def a_header(*, slot: int = 0, attempt: int = 1, **fields: Any) -> ContributionHeader:
    values: dict[str, Any] = {
        "campaign": "demo",
        "base_version": 0,
        "base_chain": "chain",
        "slot": slot,
        "attempt": attempt,
        "nonce": f"n{slot}-{attempt}",
        "steps": 10,
        "tokens": 80,
        "loss": 4.0,
        "consumed": {str(slot): (0, 10)},
        "train_seconds": 5.0,
        "sync_seconds": 1.0,
        "wait_seconds": 0.5,
        "compression": "int8",
        "payload_hash": "",
    }
    return ContributionHeader(**{**values, **fields})


def committed(*, slot: int = 0, weight: float = 1.0, **fields: Any) -> CommittedContribution:
    return CommittedContribution(header=a_header(slot=slot, **fields), weight=weight, size_bytes=1)
