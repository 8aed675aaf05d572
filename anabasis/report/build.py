"""Builds a report from what is in the store, and from the campaign's status where there is one."""

from __future__ import annotations

import time

from anabasis.campaign.records import CheckpointManifest, ModelVersion
from anabasis.campaign.spec import CampaignSpec
from anabasis.campaign.status import CampaignStatus
from anabasis.errors import ObjectNotFound
from anabasis.report.incidents import known_total, merged_incidents
from anabasis.report.ledger import report_ledger
from anabasis.report.model import CheckpointEntry, OffsetsAudit, PublishedModel, Report, Setup
from anabasis.report.rounds import RECENT_ROUNDS, RoundsTally, effective, finite
from anabasis.report.sources import Journal, Source
from anabasis.storage.base import ObjectStore


def build_report(store: ObjectStore, campaign: str, *, status: CampaignStatus | None = None) -> Report:
    """Everything that can be said of a campaign; pieces that cannot be read are named in `Report.problems`.

    Args:
        store: the store's root (`open_store(url)`), not the campaign's part of it.
        campaign: its name.
        status: what the workflow answers; without it the report needs no Temporal, and says less.

    Raises:
        ObjectNotFound: nothing is stored under this name and there is no status either.
        StoreUnavailable, StoreDenied: the store did not answer.
    """
    source = Source(store, campaign)
    if status is None and source.is_empty():
        raise ObjectNotFound(f"no campaign {campaign} in {store.url}; `anabasis list` names those that exist")
    spec, journal = source.spec(), source.journal()
    tally = RoundsTally()
    for manifest in source.manifests():
        tally.add(manifest)
    models = [_published(model) for model in source.models()]
    for model in models:
        tally.note_validation(model.campaign_version, model.validation_loss)
    return _assemble(source, status=status, spec=spec, journal=journal, tally=tally, models=models)


def _assemble(
    source: Source,
    *,
    status: CampaignStatus | None,
    spec: CampaignSpec | None,
    journal: Journal,
    tally: RoundsTally,
    models: list[PublishedModel],
) -> Report:
    curve = tally.curve()
    times = [point.at for point in curve if point.at > 0]
    newest = curve[-1] if curve else None
    lineage = effective(curve, tally.rollbacks)
    incidents = merged_incidents(journal, status=status, points=curve)
    ledger, doubts = report_ledger(
        journal,
        status=status,
        first_commit_at=times[0] if times else None,
        last_commit_at=times[-1] if times else None,
    )
    total = known_total(journal, status=status, merged=len(incidents))
    if total > len(incidents):
        doubts.append(f"journal: {total - len(incidents)} of {total} incidents are in neither journal nor status")
    tokens = newest.tokens_total if newest else 0
    states = {f"{node.slot}-{node.attempt}": node.state.value for node in status.nodes} if status else {}
    phase = _phase(source, status=status, journal=journal)
    checkpoints = [_checkpoint(number, found) for number, found in source.checkpoints()]
    audit = _audit(source, versions=len(curve))
    started = (status.started_at if status and not times else 0.0) or (times[0] if times else None)
    return Report.model_validate(
        {
            "campaign": source.campaign,
            "store_url": source.root.url,
            "generated_at": time.time(),
            **phase,
            "setup": _setup(spec) if spec else None,
            "version": newest.version if newest else -1,
            "merged_rounds": newest.merged_rounds if newest else 0,
            "tokens_total": tokens,
            "loss": _last([point.loss for point in lineage]),
            "validation_loss": _last([point.validation_loss for point in lineage]),
            "started_at": started,
            "last_commit_at": times[-1] if times else None,
            "tokens_per_second": tally.tokens_per_second(),
            "recent_tokens_per_second": tally.tokens_per_second(rounds=RECENT_ROUNDS),
            "tokens_per_paid_second": tokens / ledger.paid_node_seconds
            if ledger and ledger.paid_node_seconds > 0
            else None,
            "uploaded_bytes": tally.uploaded_bytes,
            "curve": curve,
            "rollbacks": tally.rollbacks,
            "rounds": tally.rounds,
            "nodes": tally.nodes(states=states),
            "rejections": tally.rejections,
            "incidents": incidents,
            "incidents_total": total,
            "ledger": ledger,
            "cost": ledger.cost if ledger else None,
            "checkpoints": checkpoints,
            "models": models,
            "audit": audit,
            "problems": [*source.problems, *doubts],
        }
    )


def _last(values: list[float | None]) -> float | None:
    """The newest that is known."""
    return next((value for value in reversed(values) if value is not None), None)


def _phase(source: Source, *, status: CampaignStatus | None, journal: Journal) -> dict[str, str]:
    if status is not None:
        return {
            "phase": status.phase.value,
            "phase_source": "status",
            "detail": status.detail,
            "waiting_for": status.waiting_for,
            "failure": status.failure,
        }
    roster = source.roster()
    if journal.ledgers and (roster is None or roster.phase == "finished"):
        last = journal.ledgers[-1]
        if last.outcome:
            return {"phase": last.outcome, "phase_source": "journal", "failure": last.failure}
    return {"phase": roster.phase, "phase_source": "roster"} if roster else {}


def _setup(spec: CampaignSpec) -> Setup:
    return Setup(
        recipe=spec.recipe,
        data_url=spec.data.url,
        slots=spec.fleet.slots,
        provider=spec.fleet.provider,
        target_rounds=spec.target.rounds,
        target_tokens=spec.target.tokens,
        target_loss=spec.target.loss,
        sequence_length=spec.data.sequence_length,
        seed=spec.training.seed,
        deterministic=spec.training.deterministic,
        compression=spec.training.compression,
    )


def _checkpoint(number: int, found: CheckpointManifest | str) -> CheckpointEntry:
    if isinstance(found, str):
        return CheckpointEntry(version=number, problem=found)
    return CheckpointEntry(
        version=number,
        created_at=found.created_at,
        size_bytes=found.parameters.size_bytes + found.outer.size_bytes,
        loss=finite(found.loss),
    )


def _published(model: ModelVersion) -> PublishedModel:
    return PublishedModel(
        model=model.model,
        number=model.number,
        campaign_version=model.campaign_version,
        loss=finite(model.loss),
        validation_loss=finite(model.validation_loss),
        tokens_total=model.tokens_total,
        published_at=model.published_at,
        files=sorted(model.files),
        size_bytes=sum(blob.size_bytes for blob in model.files.values()),
    )


def _audit(source: Source, *, versions: int) -> OffsetsAudit:
    if not versions:
        return OffsetsAudit(result="not_run")
    problems = source.audit()
    return OffsetsAudit(result="problems" if problems else "clean", problems=problems)
