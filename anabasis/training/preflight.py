"""Quick checks before anything is built or paid for: all problems at once, by their path in the spec."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from anabasis.campaign.messages import PreflightReport, PreflightRequest, Problem
from anabasis.errors import InvalidSpec, ObjectNotFound, StorageError
from anabasis.storage import default_store_url, open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.training.dataset import check_source
from anabasis.training.recipe import load_recipe

PATIENCE_SECONDS = 10.0
"""A store that does not answer for so long is reported as a problem; at this point nothing is lost by saying so."""


def preflight(request: PreflightRequest, *, providers: frozenset[str], tick: Callable[[str], None]) -> PreflightReport:
    """Check what the request has of: recipe, data source, store, provider.

    Args:
        providers: names that are known.
        tick: called while the store is waited for; may raise to stop.
    """
    store_url = request.store or default_store_url()
    problems = _recipe(request) + _data(request) + _store(store_url, tick=tick)
    if request.provider is not None and request.provider not in providers:
        known = ", ".join(sorted(providers))
        problems.append(("fleet.provider", f"{request.provider!r} is not known; known: {known}"))
    return PreflightReport(problems=[Problem(path=path, text=text) for path, text in problems], store_url=store_url)


def _recipe(request: PreflightRequest) -> list[tuple[str, str]]:
    if request.recipe is None:
        return []
    try:
        load_recipe(request.recipe, request.recipe_options)
    except InvalidSpec as error:
        return error.problems
    return []


def _data(request: PreflightRequest) -> list[tuple[str, str]]:
    if request.data_url is None:
        return []
    try:
        check_source(request.data_url)
    except InvalidSpec as error:
        return error.problems
    return []


def _store(url: str, *, tick: Callable[[str], None]) -> list[tuple[str, str]]:
    """Write, read and remove a small object."""
    try:
        store: ObjectStore = Resilient(
            open_store(url), on_wait=lambda reason, _: tick(reason), give_up_after_seconds=PATIENCE_SECONDS
        )
        key, value = f"preflight/{uuid.uuid4().hex}", b"anabasis"
        store.put(key, value, if_absent=True)
        found = store.get(key)
        store.delete(key)
    except InvalidSpec as error:
        return error.problems
    except ObjectNotFound:
        return [("store", f"{url}: what was just written cannot be read; the store must be strongly consistent")]
    except StorageError as error:
        return [("store", f"{url}: {error}")]
    return [] if found == value else [("store", f"{url}: returns other bytes than were written")]
