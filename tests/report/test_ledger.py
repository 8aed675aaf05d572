from __future__ import annotations

import pytest

from anabasis.campaign.status import Bucket, CampaignStatus
from anabasis.report.ledger import MEANING, UNACCOUNTED, report_ledger
from anabasis.report.model import Ledger
from anabasis.report.sources import Journal, LedgerRecord
from tests.report.samples import BUCKETS, START, status


def record(*, at: float | None, paid: float = 1_000.0, cost: float | None = 0.75) -> LedgerRecord:
    return LedgerRecord(
        paid_node_seconds=paid, buckets=dict(BUCKETS), cost=cost, outcome="completed", failure="", at=at
    )


def ledger_of(
    journal: Journal, said: CampaignStatus | None = None, *, first: float = START, last: float = START + 500
) -> tuple[Ledger | None, list[str]]:
    return report_ledger(journal, status=said, first_commit_at=first, last_commit_at=last)


def shares(ledger: Ledger | None) -> dict[str, float]:
    assert ledger is not None
    return {share.bucket: share.percent for share in ledger.buckets}


def test_nothing_is_known_without_status_and_record() -> None:
    assert ledger_of(Journal()) == (None, [])


def test_buckets_sum_to_all_that_was_paid_and_train_is_goodput() -> None:
    ledger, problems = ledger_of(Journal(), status())
    assert problems == []
    assert ledger is not None
    assert ledger.source == "status"
    assert ledger.goodput == pytest.approx(0.7)
    assert sum(shares(ledger).values()) == pytest.approx(100.0)
    assert next(iter(shares(ledger))) == "train"


def test_the_journals_final_record_stands_in_for_the_status() -> None:
    ledger, problems = ledger_of(Journal(ledgers=[record(at=START + 600)]))
    assert problems == []
    assert ledger is not None
    assert (ledger.source, ledger.runs, ledger.cost) == ("journal", 1, 0.75)


def test_the_status_replaces_the_record_of_its_own_run() -> None:
    ledger, _ = ledger_of(Journal(ledgers=[record(at=START + 600, paid=5.0)]), status())
    assert ledger is not None
    assert (ledger.source, ledger.paid_node_seconds, ledger.runs) == ("status", 1_000.0, 1)


def test_earlier_runs_are_added() -> None:
    later = status(started_at=START + 10_000, now=START + 11_000)
    ledger, problems = ledger_of(Journal(ledgers=[record(at=START + 600)]), later)
    assert problems == []
    assert ledger is not None
    assert (ledger.source, ledger.runs, ledger.paid_node_seconds) == ("journal and status", 2, 2_000.0)
    assert ledger.cost == pytest.approx(1.5)
    assert ledger.goodput == pytest.approx(0.7)


def test_a_run_without_record_is_named() -> None:
    _, problems = ledger_of(Journal(), status(started_at=START + 10_000))
    assert "earlier one left no ledger record" in problems[0]


def test_a_record_older_than_the_newest_version_is_named() -> None:
    _, problems = ledger_of(Journal(ledgers=[record(at=START + 600)]), last=START + 9_000)
    assert "older than the newest version" in problems[0]


def test_paid_seconds_in_no_bucket_are_shown_as_such() -> None:
    ledger, problems = ledger_of(Journal(ledgers=[record(at=START + 600, paid=1_250.0)]))
    assert shares(ledger)[UNACCOUNTED] == pytest.approx(20.0)
    assert sum(shares(ledger).values()) == pytest.approx(100.0)
    assert "in no bucket" in problems[0]


def test_buckets_beyond_what_was_paid_are_named_and_still_sum() -> None:
    ledger, problems = ledger_of(Journal(ledgers=[record(at=START + 600, paid=500.0)]))
    assert sum(shares(ledger).values()) == pytest.approx(100.0)
    assert "were paid" in problems[0]


def test_a_campaign_that_paid_nothing_yet_has_no_goodput() -> None:
    ledger, problems = ledger_of(Journal(), status(paid_node_seconds=0.0, ledger={}, cost=0.0))
    assert problems == []
    assert ledger is not None
    assert ledger.goodput is None
    assert ledger.buckets == []


def test_every_bucket_has_a_meaning() -> None:
    assert set(MEANING) == {*(bucket.value for bucket in Bucket), UNACCOUNTED}
