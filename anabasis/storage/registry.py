"""Published models: one registry per model name, `models/<name>/registry.json`, changed by compare-and-swap."""

from __future__ import annotations

from pydantic import Field

from anabasis.campaign.records import ModelVersion, Record
from anabasis.errors import Fenced, ObjectNotFound, PreconditionFailed
from anabasis.storage.base import ObjectStore
from anabasis.storage.records_json import parse_record, to_json

MAX_RACES = 50
"""Tries of a compare-and-swap; publishing is rare, so more than a few in a row is a fault."""

_FOLDER, _FILE = "models/", "registry.json"


class _Registry(Record):
    schema_version: int = 1
    models: list[ModelVersion] = Field(default_factory=list[ModelVersion])


def publish(store: ObjectStore, model: ModelVersion) -> ModelVersion:
    """Add a model under the next number. Idempotent by (campaign, campaign_version): then the one that is there.

    Args:
        store: the store's root.
        model: its `number` is ignored; its files are in the store already.

    Returns:
        the model with its number: 1, 2, …

    Raises:
        Fenced: others publish all the time. CorruptData: the registry cannot be read.
    """
    key = f"{_FOLDER}{model.model}/{_FILE}"
    for _ in range(MAX_RACES):
        try:
            value, etag = store.get_with_etag(key)
            present = parse_record(_Registry, value, key=key).models
        except ObjectNotFound:
            present, etag = [], None
        for other in present:
            if (other.campaign, other.campaign_version) == (model.campaign, model.campaign_version):
                return other
        added = model.model_copy(update={"number": max((other.number for other in present), default=0) + 1})
        try:
            registry = _Registry(models=[*present, added])
            store.put(key, to_json(registry), if_absent=etag is None, if_match=etag)
        except PreconditionFailed:
            continue
        return added
    raise Fenced(f"{key} was changed {MAX_RACES} times by others meanwhile; publish again")


def list_models(store: ObjectStore) -> list[ModelVersion]:
    """All published models of a store, by name and number.

    Raises:
        CorruptData: a registry cannot be read.
    """
    found: list[ModelVersion] = []
    for info in store.list(_FOLDER):
        if info.key.endswith(f"/{_FILE}") and info.key.count("/") == 2:
            found += _read(store, info.key)
    return sorted(found, key=lambda model: (model.model, model.number))


def get_model(store: ObjectStore, model: str, number: int | None = None) -> ModelVersion:
    """One published model: of this number, or the newest.

    Raises:
        ObjectNotFound: it names what there is. CorruptData: the registry cannot be read.
    """
    published = _read(store, f"{_FOLDER}{model}/{_FILE}")
    wanted = [one for one in published if number is None or one.number == number]
    if wanted:
        return max(wanted, key=lambda one: one.number)
    if published:
        numbers = ", ".join(str(one.number) for one in published)
        raise ObjectNotFound(f"model {model!r} has no number {number}; there are: {numbers}")
    names = ", ".join(sorted({one.model for one in list_models(store)})) or "none yet"
    raise ObjectNotFound(f"no model {model!r} is published in {store.url}; published: {names}")


def _read(store: ObjectStore, key: str) -> list[ModelVersion]:
    try:
        return parse_record(_Registry, store.get(key), key=key).models
    except ObjectNotFound:
        return []
