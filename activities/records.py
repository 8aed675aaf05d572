"""Control activities that write the campaign's records: the roster and the journal."""

from __future__ import annotations

import asyncio
import json

from temporalio import activity

from activities.failures import as_application_error
from anabasis.campaign.messages import WriteJournalRequest, WriteRosterRequest
from anabasis.campaign.records import Roster, keys
from anabasis.errors import AnabasisError, PreconditionFailed
from anabasis.storage import open_store
from anabasis.storage import versions as version_store


@activity.defn
async def write_roster(request: WriteRosterRequest) -> bool:
    """Publish who belongs to the campaign; False when a newer generation is there already."""
    roster = Roster.model_validate(request.roster)
    try:
        return await asyncio.to_thread(_write_roster, request.store_url, roster)
    except AnabasisError as error:
        raise as_application_error(error) from error


def _write_roster(store_url: str, roster: Roster) -> bool:
    return version_store.write_roster(open_store(store_url).child(keys.campaign_root(roster.campaign)), roster)


@activity.defn
async def write_journal(request: WriteJournalRequest) -> None:
    """Append one journal file. A retry after a lost answer finds its own file and is content."""
    try:
        await asyncio.to_thread(_write_journal, request)
    except AnabasisError as error:
        raise as_application_error(error) from error


def _write_journal(request: WriteJournalRequest) -> None:
    store = open_store(request.store_url).child(keys.campaign_root(request.campaign))
    data = json.dumps(request.entries, separators=(",", ":")).encode()
    try:
        store.put(keys.journal(request.sequence), data, if_absent=True)
    except PreconditionFailed:
        if store.get(keys.journal(request.sequence)) != data:
            # A restored server may repeat a sequence with other content: keep both.
            store.put(keys.journal(request.sequence + 500_000), data)


RECORD_ACTIVITIES = [write_roster, write_journal]
