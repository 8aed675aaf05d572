"""The start of a campaign in the store: its spec, its data set, its version 0. Every step may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePosixPath

import torch

from anabasis.campaign import rounds
from anabasis.campaign.messages import PrepareResult
from anabasis.campaign.records import BlobRef, DatasetManifest, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import Fenced, InvalidSpec, ObjectNotFound, UserCodeError
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.checkpoints import list_checkpoints
from anabasis.storage.versions import commit_version, newest_version, read_roster, read_spec, read_version, write_spec
from anabasis.training.chain import next_chain
from anabasis.training.crashpoints import crash_point
from anabasis.training.dataset import prepare_dataset
from anabasis.training.initial import initial_model
from anabasis.training.parameters import ParameterImage, count_of, fingerprint, flatten, layout_of

FROZEN = ("recipe", "recipe_options", "data", "training.seed")
"""What a campaign cannot change once it has begun: its model, its data, and the order of its samples."""


def prepare_campaign(
    store: ObjectStore,
    spec: CampaignSpec,
    *,
    tick: Callable[[str], None],
    identity: str = "",
    clock: Callable[[], float] = time.time,
) -> PrepareResult:
    """Bring the campaign's root to a state in which rounds can start or go on.

    Args:
        store: the campaign's root.
        tick: called often, with what is being done; may raise to stop.

    Raises:
        InvalidSpec: the data cannot be used, or a campaign of this name exists with another model or other data.
        UserCodeError: the recipe failed to build its model.
    """
    _settle_spec(store, spec)
    crash_point("prepared_spec")
    tick("preparing the data set")
    dataset = prepare_dataset(
        store, spec.data, seed=spec.training.seed, on_progress=lambda *_: tick("preparing the data set")
    )
    crash_point("prepared_dataset")
    newest = newest_version(store)
    if newest is None:
        tick("building the model")
        _commit_initial(store, spec, dataset, identity=identity, clock=clock)
        newest = newest_version(store) or 0
    return _result(store, newest, dataset=dataset)


def frozen_differences(stored: CampaignSpec, wanted: CampaignSpec) -> list[tuple[str, str]]:
    """Problems by path, where `wanted` would change what a begun campaign cannot change."""
    before, after = _flat(stored.model_dump(mode="json")), _flat(wanted.model_dump(mode="json"))
    problems: list[tuple[str, str]] = []
    for path in sorted(before.keys() | after.keys()):
        if any(path == frozen or path.startswith(f"{frozen}.") for frozen in FROZEN):
            old, new = before.get(path), after.get(path)
            if old != new:
                problems.append(
                    (path, f"is {new!r}, but campaign {stored.name!r} began with {old!r}; keep it or take another name")
                )
    return problems


def _settle_spec(store: ObjectStore, spec: CampaignSpec) -> None:
    try:
        stored = read_spec(store)
    except ObjectNotFound:
        write_spec(store, spec)
        return
    problems = frozen_differences(stored, spec)
    if problems:
        raise InvalidSpec(problems)
    if stored != spec:
        write_spec(store, spec)


def _flat(value: object, *, path: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, object] = {}
    for name, item in value.items():
        found |= _flat(item, path=f"{path}.{name}" if path else str(name))
    return found


def _commit_initial(
    store: ObjectStore,
    spec: CampaignSpec,
    dataset: DatasetManifest,
    *,
    identity: str,
    clock: Callable[[], float],
) -> None:
    image = _initial_parameters(spec, dataset)
    file = image.file()
    digest = hash_bytes(file)
    snapshot = BlobRef(key=keys.parameters(digest), hash=digest, size_bytes=len(file))
    store.put(snapshot.key, file)
    crash_point("prepared_snapshot")
    now = clock()
    manifest = VersionManifest(
        campaign=spec.name,
        version=0,
        parent=None,
        kind="initial",
        chain=next_chain(None, blob_hash=digest),
        fingerprint=fingerprint(image.flat),
        snapshot=snapshot,
        offsets={str(partition): 0 for partition in range(spec.data.partitions)},
        plan=rounds.make_plan(spec, round_number=0),
        close_reason="initial parameters",
        aggregator=identity,
        committed_at=now,
        opened_at=now,
        layout=image.layout,
    )
    try:
        commit_version(store, manifest)
    except Fenced:
        pass  # another one has prepared the campaign: its version 0 is as good


def _initial_parameters(spec: CampaignSpec, dataset: DatasetManifest) -> ParameterImage:
    model = initial_model(spec, dataset)
    image = ParameterImage(layout_of(model))
    if image.flat.numel() == 0:
        raise UserCodeError(f"recipe {spec.recipe!r}: its model has no floating-point parameters to train")
    image.flat.copy_(flatten(model))
    if not torch.isfinite(image.flat).all():
        raise UserCodeError(f"recipe {spec.recipe!r}: its model starts with parameters that are not finite")
    return image


def _result(store: ObjectStore, newest: int, *, dataset: DatasetManifest) -> PrepareResult:
    manifest = read_version(store, newest)
    initial = manifest if newest == 0 else read_version(store, 0)
    roster = read_roster(store)
    pages = [PurePosixPath(info.key).stem for info in store.list("journal/")]
    return PrepareResult(
        version=newest,
        parameters=count_of(initial.layout or []),
        samples=dataset.samples,
        dataset_tokens=dataset.tokens,
        merged_rounds=manifest.merged_rounds,
        tokens_total=manifest.tokens_total,
        loss=manifest.loss,
        checkpoint_version=max(list_checkpoints(store), default=None),
        roster_generation=roster.generation if roster else 0,
        journal_sequence=max((int(page) + 1 for page in pages if page.isdecimal()), default=0),
        attempts=roster.attempts if roster else {},
    )
