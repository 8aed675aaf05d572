"""The activities that need torch: preparing a campaign, its legs, checkpoints, rollbacks, publishing.

All are synchronous and run in threads; all can be repeated; none holds anything that the store does not have.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError

from activities.beating import Beating
from activities.failures import as_application_error
from activities.progress import ProgressSignals
from activities.providers.base import known_providers
from activities.warm import WarmAggregators
from anabasis.campaign import messages as m
from anabasis.campaign.records import keys
from anabasis.campaign.spec import parse_spec
from anabasis.errors import AnabasisError, UserCodeError
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.training import checkpointing, publish
from anabasis.training.aggregator import Aggregator, Interrupted
from anabasis.training.preflight import preflight
from anabasis.training.prepare import prepare_campaign
from anabasis.training.user_code import traceback_text

HANDOVER_DELAY = timedelta(milliseconds=200)
"""Before the next attempt of an activity whose worker shut down: another worker may take it at once."""

Tick = Callable[[str], None]

_log = structlog.get_logger(__name__)


class AggregatorActivities:
    """The six activities of the queue `aggregators`.

    Args:
        client: sends progress signals; None = none are sent.
        loop: the event loop that the client belongs to.
    """

    def __init__(self, client: Client | None = None, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._client = client
        self._loop = loop
        self._identity = f"{os.getpid()}@{socket.gethostname()}"
        self._warm = WarmAggregators(identity=self._identity)

    @property
    def all(self) -> list[Callable[..., Any]]:
        """For `Worker(activities=…)`."""
        return [
            self.preflight,
            self.prepare,
            self.advance_leg,
            self.write_checkpoint,
            self.roll_back,
            self.publish_model,
        ]

    @activity.defn(no_thread_cancel_exception=True)
    def preflight(self, request: m.PreflightRequest) -> m.PreflightReport:
        """Check what can be checked quickly; problems are the result, not a failure."""
        with _work("preflight") as tick:
            return preflight(request, providers=frozenset(known_providers()), tick=tick)

    @activity.defn(no_thread_cancel_exception=True)
    def prepare(self, request: m.PrepareRequest) -> m.PrepareResult:
        """Write spec, data set and version 0, as far as they are not there."""
        with _work("prepare") as tick:
            spec = parse_spec(request.spec)
            store = _resilient(request.store_url, tick=tick).child(keys.campaign_root(spec.name))
            return prepare_campaign(store, spec, tick=tick, identity=self._identity)

    @activity.defn(no_thread_cancel_exception=True)
    def advance_leg(self, request: m.LegRequest) -> m.LegResult:
        """Merge rounds. When told to stop, the result says `interrupted` and covers what was committed."""
        signals = ProgressSignals(
            self._client, self._loop, campaign=request.campaign, every_seconds=request.progress_seconds
        )
        aggregator: Aggregator | None = None

        def note(waiting_for: str) -> None:
            working = aggregator
            if working is not None:
                signals.offer(lambda: working.progress(waiting_for=waiting_for))

        with _work("advance_leg", campaign=request.campaign, also=note) as tick:
            try:
                with self._warm.borrowed(request.store_url, campaign=request.campaign, tick=tick) as aggregator:
                    return aggregator.advance(until_version=request.until_version, from_version=request.from_version)
            except Interrupted as stop:  # before the aggregator was free
                start = request.from_version or 0
                return m.LegResult(reason="interrupted", from_version=start, version=start, detail=str(stop))

    @activity.defn(no_thread_cancel_exception=True)
    def write_checkpoint(self, request: m.CheckpointRequest) -> m.CheckpointResult:
        """Make the newest version one that can be resumed from, and delete what is no longer needed."""
        with (
            _work("write_checkpoint", campaign=request.campaign) as tick,
            self._warm.borrowed(request.store_url, campaign=request.campaign, tick=tick) as aggregator,
        ):
            return checkpointing.write_checkpoint(aggregator, version=request.version, keep=request.keep)

    @activity.defn(no_thread_cancel_exception=True)
    def roll_back(self, request: m.RollbackRequest) -> m.RollbackResult:
        """Commit a version with older parameters; the data that were used since are skipped."""
        with (
            _work("roll_back", campaign=request.campaign) as tick,
            self._warm.borrowed(request.store_url, campaign=request.campaign, tick=tick) as aggregator,
        ):
            return checkpointing.roll_back(aggregator, from_version=request.from_version, not_after=request.not_after)

    @activity.defn(no_thread_cancel_exception=True)
    def publish_model(self, request: m.PublishRequest) -> m.PublishResult:
        """Evaluate a version and put it into the registry."""
        with _work("publish_model", campaign=request.campaign) as tick:
            root = _resilient(request.store_url, tick=tick)
            return publish.publish_model(root, campaign=request.campaign, version=request.version, tick=tick)


def _resilient(store_url: str, *, tick: Tick) -> ObjectStore:
    def waiting(reason: str, seconds: float) -> None:
        tick(f"the object store, for {seconds:.0f} s now ({reason})")

    return Resilient(open_store(store_url), on_wait=waiting, give_up_after_seconds=None)


@contextmanager
def _work(name: str, *, campaign: str = "", also: Tick | None = None) -> Iterator[Tick]:
    """Heartbeats, logs and failures of one activity; yields what its work calls at every step."""
    waiting_for = ""
    with (
        structlog.contextvars.bound_contextvars(activity=name, campaign=campaign),
        Beating(lambda: waiting_for[:200]) as beating,
    ):

        def tick(reason: str) -> None:
            nonlocal waiting_for
            waiting_for = reason
            beating.tick()
            if why := beating.stopping:
                raise Interrupted(why)
            if also is not None:
                also(reason)

        try:
            yield tick
        except Interrupted as stop:
            _log.info("interrupted", reason=str(stop))
            if activity.is_cancelled():
                raise CancelledError(str(stop)) from None
            raise ApplicationError(str(stop), type="WorkerShutdown", next_retry_delay=HANDOVER_DELAY) from None
        except UserCodeError as error:
            _log.warning("activity_failed", error=error.kind, reason=str(error))
            raise as_application_error(UserCodeError(traceback_text(error))) from error
        except AnabasisError as error:
            _log.warning("activity_failed", error=error.kind, reason=str(error))
            raise as_application_error(error) from error
