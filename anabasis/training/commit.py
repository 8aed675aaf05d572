"""From a closed round to a committed version: merge, write the delta, write the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from anabasis.campaign import rounds
from anabasis.campaign.records import (
    BlobRef,
    CommittedContribution,
    Roster,
    VersionManifest,
    keys,
)
from anabasis.campaign.spec import CampaignSpec
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.versions import commit_version
from anabasis.training.chain import next_chain
from anabasis.training.crashpoints import crash_point
from anabasis.training.gate import token_weights
from anabasis.training.mailbox import Letter, Mailbox
from anabasis.training.merge import Weighted
from anabasis.training.parameters import fingerprint
from anabasis.training.recovery import GlobalState

PARALLEL_PARAMETERS = 4_000_000
"""Below, the fingerprint takes less time than starting a thread for it."""


def commit_merge(
    store: ObjectStore,
    state: GlobalState,
    spec: CampaignSpec,
    *,
    mailbox: Mailbox,
    close: rounds.Close,
    roster: Roster,
    opened_at: float,
    clock: Callable[[], float],
    identity: str,
) -> None:
    """Make and commit the next version; `state` becomes it.

    Raises:
        Fenced: another has committed this version; `state` is unusable, as after any other error.
        Diverged: the step is not finite.
    """
    started = time.monotonic()
    parent, plan = state.manifest, state.manifest.plan
    assert plan is not None  # noqa: S101  (a round was decided by it)
    letters = {slot: mailbox.arrived[slot] for slot in close.slots}
    weights = token_weights({slot: letter.header for slot, letter in letters.items()})
    crash_point("mail_read")
    delta = state.merger(spec.training.compression).step(
        state.parameters,
        state.outer,
        [Weighted(letter.tensors, weights[slot]) for slot, letter in letters.items()],
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
    )
    crash_point("merged")
    blob, print_of_parameters = _write_delta(store, state, delta)
    crash_point("delta_written")
    manifest = _manifest(spec, parent, state.history, letters=letters, weights=weights, roster=roster).model_copy(
        update={
            "chain": next_chain(parent.chain, blob_hash=blob.hash),
            "fingerprint": print_of_parameters,
            "delta": blob,
            "rejected": sorted(mailbox.rejected.values(), key=lambda item: (item.slot, item.attempt)),
            "missing": _missing(parent, letters=letters, mailbox=mailbox),
            "close_reason": close.reason,
            "aggregator": identity,
            "opened_at": opened_at,
            "committed_at": clock(),
            "merge_seconds": round(time.monotonic() - started, 6),
        }
    )
    crash_point("before_commit")
    commit_version(store, manifest)
    crash_point("after_commit")
    state.now_at(manifest)


def _write_delta(store: ObjectStore, state: GlobalState, delta: memoryview) -> tuple[BlobRef, str]:
    """(the delta's reference, fingerprint of the new parameters): two cores' work where it is worth a thread."""
    digest, flat = hash_bytes(delta), state.parameters.flat  # the hash occupies all cores: nothing beside it
    blob = BlobRef(key=keys.delta(state.manifest.version + 1, digest), hash=digest, size_bytes=len(delta))
    if flat.numel() < PARALLEL_PARAMETERS:
        _put_delta(store, blob, delta)
        return blob, fingerprint(flat)
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as aside:
        printed = aside.submit(fingerprint, flat)
        _put_delta(store, blob, delta)
        return blob, printed.result()


def _put_delta(store: ObjectStore, blob: BlobRef, delta: memoryview) -> None:
    crash_point("before_delta")
    store.put(blob.key, delta)  # whatever is there has this content, or is damaged: the name is the content's hash


def _manifest(
    spec: CampaignSpec,
    parent: VersionManifest,
    history: Sequence[VersionManifest],
    *,
    letters: Mapping[int, Letter],
    weights: Mapping[int, float],
    roster: Roster,
) -> VersionManifest:
    """The next version's accounting; `commit_merge` adds what depends on the parameters."""
    merged = [
        CommittedContribution(header=letter.header, weight=weights[slot], size_bytes=letter.size_bytes)
        for slot, letter in letters.items()
    ]
    offsets = dict(parent.offsets)
    for item in merged:
        offsets |= {partition: end for partition, (_, end) in item.header.consumed.items()}
    loss = sum(item.weight * item.header.loss for item in merged)
    spiked = rounds.loss_spiked(
        loss, mean=parent.loss_mean, rounds_seen=rounds.merges_in_row(history), spike_factor=spec.health.spike_factor
    )
    evaluated = [item.header.validation_loss for item in merged if item.header.validation_loss is not None]
    return VersionManifest(
        campaign=parent.campaign,
        version=parent.version + 1,
        parent=parent.version,
        kind="merge",
        chain="",
        fingerprint="",
        contributions=merged,
        offsets=offsets,
        plan=rounds.make_plan(
            spec,
            round_number=parent.merged_rounds + 1,
            roster=roster,
            previous=parent.plan,
            history=[*(manifest.contributions for manifest in history if manifest.contributions), merged],
        ),
        loss=loss,
        loss_mean=parent.loss_mean if spiked else rounds.next_loss_mean(parent.loss_mean, loss),
        validation_loss=evaluated[0] if evaluated else None,
        tokens_total=parent.tokens_total + sum(item.header.tokens for item in merged),
        merged_rounds=parent.merged_rounds + 1,
    )


def _missing(parent: VersionManifest, *, letters: Mapping[int, Letter], mailbox: Mailbox) -> list[int]:
    """Planned slots that sent nothing."""
    planned = {int(slot) for slot in parent.plan.assignments} if parent.plan else set()
    return sorted(planned - set(letters) - {slot for slot, _ in mailbox.rejected})
