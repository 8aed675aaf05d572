from __future__ import annotations

import json

import pytest

from anabasis.campaign.records import BlobRef, CheckpointManifest, ModelVersion, keys
from anabasis.campaign.status import Phase
from anabasis.errors import ObjectNotFound, StoreUnavailable
from anabasis.report import Report, build_report
from anabasis.report.sources import Source
from anabasis.storage import checkpoints, registry, versions
from anabasis.storage.base import ObjectStore
from tests.report.samples import (
    ROUND_SECONDS,
    SAMPLES,
    SEQUENCE,
    START,
    eventful,
    incident,
    ledger_entry,
    loss_at,
    manifests,
    status,
    write_campaign,
)


def test_a_finished_campaign_is_told_without_temporal(eventful_report: Report) -> None:
    report = eventful_report
    assert report.problems == []
    assert (report.phase, report.phase_source) == ("completed", "journal")
    assert (report.version, report.merged_rounds) == (60, 59)
    assert report.loss == loss_at(60)
    assert [point.version for point in report.curve] == list(range(61))
    assert report.tokens_total == report.curve[-1].tokens_total == sum(node.tokens for node in report.nodes)
    assert report.ledger is not None
    assert report.ledger.goodput == pytest.approx(0.7)
    assert report.cost == 0.75
    assert [item.sequence for item in report.incidents] == [1, 2, 3, 4, 5]
    assert report.setup is not None
    assert report.setup.target_rounds == 60


def test_rollbacks_rejections_and_membership_are_listed(eventful_report: Report) -> None:
    report = eventful_report
    assert [(r.version, r.restored, r.discarded) for r in report.rollbacks] == [(30, 27, 2)]
    assert [(r.version, r.slot, r.reason) for r in report.rejections] == [(42, 0, "norm")]
    by_version = {members.version: members for members in report.rounds}
    assert 30 not in by_version
    assert by_version[14].missing_slots == [1]
    assert by_version[15].contributors == ["0-1", "1-2", "2-1", "3-1"]
    assert by_version[42].rejected == ["0-1"]


def test_contributions_are_counted_per_node_life(eventful_report: Report) -> None:
    nodes = {node.name: node for node in eventful_report.nodes}
    assert set(nodes) == {"0-1", "1-1", "1-2", "2-1", "3-1", "3-2"}
    assert nodes["1-1"].rounds == 13
    assert nodes["1-1"].tokens == 13 * SAMPLES * SEQUENCE
    assert nodes["1-1"].train_seconds == pytest.approx(13 * 9.0)
    assert nodes["1-1"].uploaded_bytes == 13 * 250_000
    assert (nodes["1-2"].first_version, nodes["1-2"].last_version) == (15, 60)
    assert nodes["0-1"].rejections == 1
    assert sum(node.share for node in eventful_report.nodes) == pytest.approx(1.0)


def test_validation_losses_belong_to_the_version_they_were_measured_on(eventful_report: Report) -> None:
    measured = {p.version: p.validation_loss for p in eventful_report.curve if p.validation_loss is not None}
    assert measured[0] == pytest.approx(loss_at(0) + 0.1)
    assert measured[5] == pytest.approx(loss_at(5) + 0.1)
    assert 6 not in measured


def test_speed_is_tokens_over_time(store: ObjectStore) -> None:
    write_campaign(store, manifests(20))
    report = build_report(store, "demo")
    assert report.tokens_per_second == pytest.approx(4 * SAMPLES * SEQUENCE / ROUND_SECONDS)
    assert report.recent_tokens_per_second == pytest.approx(report.tokens_per_second)
    assert report.curve[5].seconds == pytest.approx(ROUND_SECONDS)


def test_the_status_of_a_running_campaign_is_used(store: ObjectStore) -> None:
    write_campaign(store, manifests(5), journal=[[incident(1, at=START).model_dump(mode="json")]])
    said = status(waiting_for="2 of 4 nodes", incidents=[incident(2, at=START + 20)], incidents_total=2)
    report = build_report(store, "demo", status=said)
    assert (report.phase, report.phase_source, report.waiting_for) == ("training", "status", "2 of 4 nodes")
    assert [item.sequence for item in report.incidents] == [1, 2]
    assert {node.name: node.state for node in report.nodes}["0-1"] == "ready"
    assert report.tokens_per_paid_second == pytest.approx(report.tokens_total / 1_000.0)
    assert report.problems == []


def test_nothing_under_the_name_is_an_error(store: ObjectStore) -> None:
    write_campaign(store, manifests(1))
    with pytest.raises(ObjectNotFound, match="no campaign other"):
        build_report(store, "other")


def test_a_campaign_that_has_only_a_status_has_a_report(store: ObjectStore) -> None:
    report = build_report(store, "demo", status=status(phase=Phase.VALIDATING, ledger={}, paid_node_seconds=0.0))
    assert (report.version, report.phase, report.audit.result) == (-1, "validating", "not_run")
    assert report.started_at == START - 30


def test_a_campaign_without_any_version_is_empty(store: ObjectStore) -> None:
    write_campaign(store, [])
    report = build_report(store, "demo")
    assert (report.curve, report.nodes, report.incidents, report.ledger) == ([], [], [], None)
    assert (report.loss, report.tokens_per_second, report.cost) == (None, None, None)
    assert report.problems == []


def test_one_version_is_enough(store: ObjectStore) -> None:
    write_campaign(store, manifests(0))
    report = build_report(store, "demo")
    assert (report.version, report.merged_rounds, report.tokens_total) == (0, 0, 0)
    assert report.audit.result == "clean"


def test_a_clean_campaign_passes_the_audit(eventful_report: Report) -> None:
    assert eventful_report.audit.problems == []
    assert eventful_report.audit.result == "clean"


def test_a_corrupt_manifest_is_named_and_the_rest_is_told(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(6))
    campaign.put(keys.version(3), b'{"version": 3, "kind"')
    report = build_report(store, "demo")
    assert [point.version for point in report.curve] == [0, 1, 2, 4, 5, 6]
    assert any(problem.startswith("versions/000003.json: ") for problem in report.problems)
    assert report.audit.result == "problems"


def test_a_missing_manifest_is_named(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(8))
    for number in (2, 3, 6):
        campaign.delete(keys.version(number))
    report = build_report(store, "demo")
    assert any("versions: 2-3, 6 missing although 8 exists" in problem for problem in report.problems)
    assert report.audit.result == "problems"


def test_a_foreign_file_among_the_versions_is_named(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(2))
    campaign.put("versions/notes.txt", b"hello")
    report = build_report(store, "demo")
    assert report.problems == ["versions/notes.txt: is not a version manifest; remove it"]
    assert report.version == 2


def test_a_missing_journal_leaves_incidents_and_goodput_open(store: ObjectStore) -> None:
    write_campaign(store, manifests(4))
    report = build_report(store, "demo")
    assert (report.incidents, report.ledger, report.problems) == ([], None, [])


@pytest.mark.parametrize(
    "broken", [b"not json", b'{"sequence": 1}', b"[3]", b'[{"sequence": "x"}]', b'[{"kind": "ledger"}]', b"\xff\xfe"]
)
def test_a_corrupt_journal_file_is_named_and_the_others_are_read(store: ObjectStore, broken: bytes) -> None:
    entries: list[list[object]] = [[incident(1, at=START).model_dump(mode="json")]]
    campaign = write_campaign(store, manifests(4), journal=entries)
    campaign.put(keys.journal(1), broken)
    campaign.put(keys.journal(2), json.dumps([incident(9, at=START).model_dump(mode="json")]).encode())
    report = build_report(store, "demo")
    assert [item.sequence for item in report.incidents] == [1, 9]
    assert [problem for problem in report.problems if problem.startswith("journal/000001.json")] != []


def test_a_corrupt_spec_is_named(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(4), spec=False)
    campaign.put(keys.SPEC, b'{"name": "Not A Name"}')
    report = build_report(store, "demo")
    assert report.setup is None
    assert report.problems[0].startswith("spec.json: ")


def test_lost_incidents_are_counted(store: ObjectStore) -> None:
    write_campaign(store, manifests(4))
    report = build_report(store, "demo", status=status(incidents=[incident(9, at=START)], incidents_total=9))
    assert report.incidents_total == 9
    assert any("8 of 9 incidents are in neither journal nor status" in problem for problem in report.problems)


def test_checkpoints_and_published_models_are_listed(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(10))
    checkpoints.write_checkpoint_manifest(campaign, _checkpoint(10))
    campaign.put(keys.checkpoint(5), b"torn")
    registry.publish(store, _model(10))
    registry.publish(store, _model(10).model_copy(update={"campaign": "another", "model": "another"}))
    report = build_report(store, "demo")
    assert [(entry.version, bool(entry.problem)) for entry in report.checkpoints] == [(5, True), (10, False)]
    assert report.checkpoints[1].size_bytes == 3_000
    assert [(model.model, model.number, model.campaign_version) for model in report.models] == [("demo", 1, 10)]
    assert report.validation_loss == 1.5
    assert report.curve[10].validation_loss == 1.5


def test_the_phase_comes_from_the_roster_while_no_run_has_ended(store: ObjectStore) -> None:
    from anabasis.campaign.records import Roster

    campaign = write_campaign(store, manifests(2))
    roster = Roster(campaign="demo", generation=1, phase="paused", slots=[0], members=[], target_rounds=60)
    versions.write_roster(campaign, roster)
    report = build_report(store, "demo")
    assert (report.phase, report.phase_source) == ("paused", "roster")


def test_a_failed_run_says_why(store: ObjectStore) -> None:
    write_campaign(
        store, manifests(2), journal=[[{**ledger_entry(at=START + 99, outcome="failed"), "failure": "recipe raised"}]]
    )
    report = build_report(store, "demo")
    assert (report.phase, report.failure) == ("failed", "recipe raised")


def test_a_store_that_does_not_answer_is_an_error_not_a_hole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_campaign(store, manifests(3))

    def unavailable(*_: object) -> None:
        raise StoreUnavailable("the store does not answer; try again")

    monkeypatch.setattr(versions, "read_version", unavailable)
    with pytest.raises(StoreUnavailable):
        list(Source(store, "demo").manifests())


def test_the_json_form_is_complete_and_stable(eventful_report: Report) -> None:
    text = eventful_report.model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert Report.model_validate_json(text) == eventful_report
    assert json.loads(text)["schema_version"] == 1


def test_losses_that_are_no_numbers_are_left_out(store: ObjectStore) -> None:
    broken = [m.model_copy(update={"loss": float("nan")}) if m.version == 3 else m for m in manifests(5)]
    write_campaign(store, broken)
    report = build_report(store, "demo")
    assert report.curve[3].loss is None
    assert report.loss == loss_at(5)


def test_after_a_rollback_the_losses_are_those_of_the_restored_version(store: ObjectStore) -> None:
    write_campaign(store, manifests(13, rollback_at=13))
    report = build_report(store, "demo")
    assert (report.version, report.merged_rounds) == (13, 12)
    assert report.loss == loss_at(10)
    assert report.validation_loss == pytest.approx(loss_at(10) + 0.1)
    assert report.curve[13].loss is None


def test_two_thousand_versions_are_read(long_report: Report) -> None:
    assert (long_report.version, len(long_report.curve), long_report.problems) == (2_000, 2_001, [])
    assert long_report.audit.result == "clean"


def test_two_campaigns_in_one_store_do_not_mix(store: ObjectStore) -> None:
    eventful(store, campaign="first")
    write_campaign(store, manifests(3, campaign="second"), campaign="second")
    report = build_report(store, "second")
    assert (report.version, report.incidents, report.rollbacks) == (3, [], [])


def _checkpoint(version: int) -> CheckpointManifest:
    made = manifests(version)[-1]
    return CheckpointManifest(
        campaign="demo",
        version=version,
        chain=made.chain,
        fingerprint=made.fingerprint,
        parameters=BlobRef(key="params/a.safetensors", hash="a" * 64, size_bytes=1_000),
        outer=BlobRef(key="outer/a.safetensors", hash="b" * 64, size_bytes=2_000),
        manifest_hash="c" * 64,
        layout=[],
        offsets=made.offsets,
        tokens_total=made.tokens_total,
        loss=made.loss,
        created_at=made.committed_at,
    )


def _model(version: int) -> ModelVersion:
    return ModelVersion(
        model="demo",
        number=0,
        campaign="demo",
        campaign_version=version,
        files={"model.safetensors": BlobRef(key="models/demo/m", hash="d" * 64, size_bytes=7)},
        loss=2.0,
        validation_loss=1.5,
        tokens_total=1_000,
        published_at=START + 999,
    )
