"""Progress signals from the aggregator to its campaign: few, and never in the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

import structlog
from temporalio.client import Client

from anabasis.campaign.messages import ProgressReport

SIGNAL_TIMEOUT_SECONDS = 10.0

_log = structlog.get_logger(__name__)


class ProgressSignals:
    """Signals `progress` to the workflow `campaign/<name>` when something changed, at most every so often.

    Failures are logged and forgotten: a later report says all that an earlier one did.

    Args:
        loop: where the client lives; signals are sent from there while the aggregator works in its thread.
    """

    def __init__(
        self, client: Client | None, loop: asyncio.AbstractEventLoop | None, *, campaign: str, every_seconds: float
    ) -> None:
        self._client = client
        self._loop = loop
        self._workflow_id = f"campaign/{campaign}"
        self._every_seconds = every_seconds
        self._next_at = 0.0
        self._told: tuple[int, str] | None = None
        self._in_flight: Future[None] | None = None

    def offer(self, make_report: Callable[[], ProgressReport | None]) -> None:
        """Call often, from any thread; the report is only made when it may be sent."""
        now = time.monotonic()
        if self._client is None or self._loop is None or now < self._next_at:
            return
        if self._in_flight is not None and not self._in_flight.done():
            return
        report = make_report()
        if report is None or (report.version, report.waiting_for) == self._told:
            return
        self._told = (report.version, report.waiting_for)
        self._next_at = now + self._every_seconds
        self._in_flight = asyncio.run_coroutine_threadsafe(self._send(self._client, report), self._loop)

    async def _send(self, client: Client, report: ProgressReport) -> None:
        try:
            async with asyncio.timeout(SIGNAL_TIMEOUT_SECONDS):
                await client.get_workflow_handle(self._workflow_id).signal("progress", report)
        except Exception as error:  # the campaign may be over, the server away: neither is the aggregator's business
            self._told = None
            _log.debug("progress_not_sent", reason=str(error))
