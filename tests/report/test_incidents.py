from __future__ import annotations

from anabasis.report.incidents import known_total, merged_incidents
from anabasis.report.model import CurvePoint
from anabasis.report.rounds import RoundsTally
from anabasis.report.sources import Journal
from tests.report.samples import START, incident, manifests, status


def points(count: int = 10) -> list[CurvePoint]:
    tally = RoundsTally()
    for manifest in manifests(count):
        tally.add(manifest)
    return tally.curve()


def test_journal_and_status_are_merged_by_sequence_each_once() -> None:
    journal = Journal(incidents=[(0, incident(n, at=START + n)) for n in (1, 2, 3)])
    said = status(incidents=[incident(n, at=START + n) for n in (3, 4)], incidents_total=4)
    merged = merged_incidents(journal, status=said, points=points())
    assert [item.sequence for item in merged] == [1, 2, 3, 4]
    assert known_total(journal, status=said, merged=len(merged)) == 4


def test_the_copy_that_knows_more_wins() -> None:
    early = incident(1, at=START, mended_at=None)
    late = incident(1, at=START)
    for first, second in ((early, late), (late, early)):
        merged = merged_incidents(
            Journal(incidents=[(0, first)]), status=status(incidents=[second], incidents_total=1), points=[]
        )
        assert [item.mended_after for item in merged] == [20.0]


def test_durations_count_from_when_it_happened() -> None:
    (item,) = merged_incidents(Journal(incidents=[(0, incident(1, at=START))]), status=None, points=[])
    assert (item.noticed_after, item.decided_after, item.mended_after) == (5.0, 5.5, 20.0)
    assert item.measured_from == "happened"


def test_durations_count_from_the_notice_when_the_beginning_is_not_known() -> None:
    unknown = incident(1, at=START, happened_at=None)
    (item,) = merged_incidents(Journal(incidents=[(0, unknown)]), status=None, points=[])
    assert item.measured_from == "noticed"
    assert (item.noticed_after, item.decided_after, item.mended_after) == (None, 0.5, 15.0)


def test_a_duration_is_never_negative() -> None:
    skewed = incident(1, at=START, noticed_at=START - 1)
    (item,) = merged_incidents(Journal(incidents=[(0, skewed)]), status=None, points=[])
    assert item.noticed_after == 0.0


def test_a_later_run_counts_from_one_again_and_loses_nothing() -> None:
    journal = Journal(incidents=[(0, incident(1, at=START)), (1, incident(1, at=START + 9_000))])
    merged = merged_incidents(journal, status=None, points=[])
    assert [(item.run, item.sequence) for item in merged] == [(0, 1), (1, 1)]


def test_incidents_know_their_round() -> None:
    # Version 3 commits 36 s after the start; what happens at 30 s belongs to the round that makes it.
    (item,) = merged_incidents(Journal(incidents=[(0, incident(1, at=START + 30))]), status=None, points=points())
    assert item.version == 3
    (after,) = merged_incidents(Journal(incidents=[(0, incident(1, at=START + 9_999))]), status=None, points=points())
    assert after.version == 10


def test_a_lost_part_of_the_journal_shows_in_the_total() -> None:
    said = status(incidents=[incident(300, at=START)], incidents_total=300)
    assert known_total(Journal(), status=said, merged=1) == 300
