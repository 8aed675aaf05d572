"""The dev server's state: search attributes and retention, in new databases and in those of earlier versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from anabasis.errors import StackError
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until
from workers import temporal_server
from workers.temporal_server import prepare_namespace

CAMPAIGN = SearchAttributeKey.for_keyword("Campaign")


async def _start_and_find_by_attribute(client: Client) -> None:
    attributes = TypedSearchAttributes([SearchAttributePair(CAMPAIGN, "old")])
    await client.start_workflow("Any", id="old", task_queue="nobody", search_attributes=attributes)

    async def visible() -> bool:
        return (await client.count_workflows("Campaign = 'old'")).count == 1

    await wait_until(visible, seconds=30)


@pytest.fixture
def server_with_an_older_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporalServer]:
    """Made by a version that knew no search attributes."""
    with monkeypatch.context() as older:
        older.setattr(temporal_server, "SEARCH_ATTRIBUTES", {})
        server = TemporalServer.started(tmp_path / "temporal")
    yield server
    server.kill()


async def test_attributes_are_there_for_a_database_that_an_earlier_version_made(
    server_with_an_older_database: TemporalServer,
) -> None:
    server = server_with_an_older_database
    await asyncio.to_thread(server.restart)
    client = await server.client()
    await _start_and_find_by_attribute(client)


async def test_attributes_can_be_used_right_after_they_were_added(
    server_with_an_older_database: TemporalServer,
) -> None:
    client = await server_with_an_older_database.client()
    await prepare_namespace(client)
    await _start_and_find_by_attribute(client)


async def test_preparing_twice_changes_nothing(own_temporal_server: TemporalServer) -> None:
    client = await own_temporal_server.client()
    await prepare_namespace(client)
    await prepare_namespace(client)
    await _start_and_find_by_attribute(client)


async def test_an_attribute_of_another_type_is_named(
    own_temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_server, "SEARCH_ATTRIBUTES", {"Campaign": "Int"})
    with pytest.raises(StackError, match="Campaign is INDEXED_VALUE_TYPE_KEYWORD"):
        await prepare_namespace(await own_temporal_server.client())
