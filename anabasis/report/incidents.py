"""Puts the incidents of journal and status together: by run and sequence, each once, with durations."""

from __future__ import annotations

from typing import Literal

from anabasis.campaign.status import CampaignStatus, Incident
from anabasis.report.model import CurvePoint, ReportedIncident
from anabasis.report.rounds import version_at
from anabasis.report.sources import Journal

_Key = tuple[int, int, str, float]


def merged_incidents(
    journal: Journal, *, status: CampaignStatus | None, points: list[CurvePoint]
) -> list[ReportedIncident]:
    """Every known incident once, in order.

    A later run of a campaign counts from 1 again, so an incident is told by its run as well; the copy that knows
    more (mended, decided) wins, since the journal may hold an earlier look than the status.
    """
    found: dict[_Key, Incident] = {}
    for run, incident in [*journal.incidents, *_of_status(journal, status)]:
        key = (run, incident.sequence, incident.kind, incident.noticed_at)
        known = found.get(key)
        if known is None or _knows(incident) >= _knows(known):
            found[key] = incident
    return [_reported(incident, run=key[0], points=points) for key, incident in sorted(found.items())]


def known_total(journal: Journal, *, status: CampaignStatus | None, merged: int) -> int:
    """How many incidents there were, also where the journal has lost some."""
    if status is None:
        return merged
    earlier = sum(run < status_run(journal, status) for run, _ in journal.incidents)
    return max(merged, earlier + status.incidents_total)


def status_run(journal: Journal, status: CampaignStatus) -> int:
    """Which run the status speaks of: those before it ended (by the workflows' clock) before it started."""
    return sum(record.at is not None and record.at < status.started_at for record in journal.ledgers)


def _of_status(journal: Journal, status: CampaignStatus | None) -> list[tuple[int, Incident]]:
    if status is None:
        return []
    run = status_run(journal, status)
    return [(run, incident) for incident in status.incidents]


def _knows(incident: Incident) -> int:
    filled = (incident.happened_at, incident.decided_at, incident.mended_at, incident.decision or None)
    return sum(value is not None for value in filled)


def _reported(incident: Incident, *, run: int, points: list[CurvePoint]) -> ReportedIncident:
    start = incident.happened_at if incident.happened_at is not None else incident.noticed_at
    measured_from: Literal["happened", "noticed"] = "happened" if incident.happened_at is not None else "noticed"

    def after(moment: float | None) -> float | None:
        # Two clocks may disagree by a little; a negative duration would only confuse.
        return None if moment is None else max(0.0, moment - start)

    return ReportedIncident(
        **incident.model_dump(),
        run=run,
        measured_from=measured_from,
        noticed_after=after(incident.noticed_at) if incident.happened_at is not None else None,
        decided_after=after(incident.decided_at),
        mended_after=after(incident.mended_at),
        version=version_at(points, start),
    )
