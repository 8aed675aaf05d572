"""Incidents: what failed, what was decided, how long it took. Bounded in the state, complete in the journal."""

from __future__ import annotations

from anabasis.campaign.messages import AggregatorIncident
from anabasis.campaign.state import CampaignState
from anabasis.campaign.status import Incident

KEPT = 200
"""Incidents in the state: ~200 bytes each, so 40 KB in a continue-as-new, far below the 2 MB of a payload."""

FLUSH_AT = 50
"""Closed incidents that make a journal write worth its three history events, between checkpoints."""


def open_incident(
    state: CampaignState,
    *,
    kind: str,
    text: str,
    noticed_at: float,
    decision: str = "",
    slot: int | None = None,
    attempt: int | None = None,
    happened_at: float | None = None,
    decided_at: float | None = None,
    mended_at: float | None = None,
) -> None:
    """Append one; text is cut, since a traceback can be long and history is not the place for it."""
    state.incident_sequence += 1
    state.incidents.append(
        Incident(
            sequence=state.incident_sequence,
            kind=kind,
            text=text[:600],
            decision=decision,
            slot=slot,
            attempt=attempt,
            happened_at=happened_at,
            noticed_at=noticed_at,
            decided_at=decided_at,
            mended_at=mended_at,
        )
    )
    overflow = len(state.incidents) - KEPT
    if overflow > 0:
        # Only what the journal has may go; if the journal lags, the state holds on to at most twice as many.
        state.incidents = [
            incident
            for index, incident in enumerate(state.incidents)
            if index >= overflow or (incident.sequence > state.journaled_through and index >= overflow - KEPT)
        ]


def amend(state: CampaignState, *, slot: int | None, kinds: set[str] | None = None, **changes: float | str) -> None:
    """Fill fields that are still open in the incidents of a slot (None: of the campaign)."""
    for index, incident in enumerate(state.incidents):
        if incident.slot != slot or incident.mended_at is not None or (kinds and incident.kind not in kinds):
            continue
        missing = {name: value for name, value in changes.items() if getattr(incident, name) in (None, "")}
        if missing:
            state.incidents[index] = incident.model_copy(update=missing)


def from_aggregator(state: CampaignState, found: list[AggregatorIncident], *, at: float) -> None:
    """Take over what the aggregator noticed."""
    decisions = {
        "corrupt_contribution": "asked the node to send it again",
        "rejected_contribution": "left out of the merge; its samples are trained again",
        "checkpoint_fallback": "used the checkpoint before",
        "store_unavailable": "waited",
    }
    for item in found:
        open_incident(
            state,
            kind=item.kind,
            text=item.text,
            decision=decisions[item.kind],
            slot=item.slot,
            attempt=item.attempt,
            happened_at=None,
            noticed_at=item.noticed_at or at,
            decided_at=item.noticed_at or at,
            mended_at=item.mended_at or at,
        )


def closed_since_journal(state: CampaignState) -> list[Incident]:
    """The next stretch for the journal: in sequence, up to the first that is still open."""
    stretch: list[Incident] = []
    for incident in state.incidents:
        if incident.sequence <= state.journaled_through:
            continue
        if incident.mended_at is None:
            break
        stretch.append(incident)
    return stretch
