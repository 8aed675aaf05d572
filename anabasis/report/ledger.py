"""The goodput ledger of a report: of all runs that are known, in buckets that sum to what was paid."""

from __future__ import annotations

from anabasis.campaign.status import Bucket, CampaignStatus
from anabasis.report.incidents import status_run
from anabasis.report.model import Ledger, LedgerShare
from anabasis.report.sources import Journal, LedgerRecord

UNACCOUNTED = "unaccounted"
"""Paid seconds that no bucket names: only when a record does not add up."""

MEANING: dict[str, str] = {
    Bucket.TRAIN: "training steps that were committed",
    Bucket.SYNC: "moving parameters and updates",
    Bucket.WAIT: "waiting for the round to close",
    Bucket.BOOT: "from paid to ready",
    Bucket.OPEN: "work that no commit covers yet",
    Bucket.LOST: "work that was never committed",
    Bucket.PAUSED: "held while paused",
    Bucket.RELEASE: "from leaving to confirmed gone",
    UNACCOUNTED: "paid, but in no bucket",
}
"""Order and meaning of the buckets, the productive one first."""

_TOLERANCE = 1e-6
"""Relative; floats that were summed in another order differ by less."""

_SLACK_SECONDS = 60.0
"""Clocks of the aggregator and of the workflow may differ by this before a gap counts as an unknown run."""


def report_ledger(
    journal: Journal, *, status: CampaignStatus | None, first_commit_at: float | None, last_commit_at: float | None
) -> tuple[Ledger | None, list[str]]:
    """The ledger of all known runs, and what does not add up.

    Returns:
        None for the ledger when nobody says anything of it.
    """
    records = list(journal.ledgers)
    problems: list[str] = []
    speaks = status is not None and (bool(status.ledger) or status.paid_node_seconds > 0 or not records)
    if status is not None and speaks:
        records = records[: status_run(journal, status)]
        if first_commit_at and not records and first_commit_at < status.started_at - _SLACK_SECONDS:
            problems.append("ledger: covers only the present run; an earlier one left no ledger record in the journal")
    source = "status" if not records else ("journal and status" if speaks else "journal")
    if status is not None and speaks:
        records.append(_of_status(status))
    if not records:
        return None, problems
    newest = records[-1].at
    if not speaks and last_commit_at and newest is not None and last_commit_at > newest + _SLACK_SECONDS:
        problems.append("ledger: the journal's last record is older than the newest version; give the status too")
    return _summed(records, source=source, problems=problems), problems


def _of_status(status: CampaignStatus) -> LedgerRecord:
    return LedgerRecord(
        paid_node_seconds=status.paid_node_seconds,
        buckets={bucket.value: seconds for bucket, seconds in status.ledger.items()},
        cost=status.cost,
        outcome="",
        failure="",
        at=status.now or None,
    )


def _summed(records: list[LedgerRecord], *, source: str, problems: list[str]) -> Ledger:
    buckets: dict[str, float] = {}
    for record in records:
        for name, seconds in record.buckets.items():
            buckets[name] = buckets.get(name, 0.0) + max(0.0, seconds)
    paid = sum(record.paid_node_seconds for record in records)
    named = sum(buckets.values())
    if paid > named * (1 + _TOLERANCE):
        buckets[UNACCOUNTED] = paid - named
        problems.append(f"ledger: {paid - named:.1f} of {paid:.1f} paid node-seconds are in no bucket")
    elif named > paid * (1 + _TOLERANCE):
        problems.append(f"ledger: the buckets hold {named:.1f} node-seconds, but {paid:.1f} were paid")
    whole = max(paid, named)
    order = [*MEANING, *sorted(set(buckets) - set(MEANING))]
    present = [name for name in order if buckets.get(name, 0.0) > 0]
    costs = [record.cost for record in records if record.cost is not None]
    return Ledger.model_validate(
        {
            "source": source,
            "runs": len(records),
            "paid_node_seconds": paid,
            "cost": sum(costs) if costs else None,
            "buckets": [
                LedgerShare(bucket=name, seconds=buckets[name], percent=100.0 * buckets[name] / whole)
                for name in present
            ],
            "goodput": buckets.get(Bucket.TRAIN.value, 0.0) / whole if whole > 0 else None,
            "as_of": records[-1].at,
        }
    )
