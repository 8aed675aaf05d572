"""The control activities, through a real server: what the node workflow sees of providers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.nodes import NODE_ACTIVITIES
from activities.providers.local import stop_all
from activities.providers.node_folder import NodeFolder
from anabasis.campaign.messages import NodeCommand, NodeDescription, NodeHandle, NodeIdentity
from tests.nodes.conftest import alive, identity, request_for
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until


class Control:
    """A control worker's node activities."""

    def __init__(self, client: Client, *, queue: str, home: Path) -> None:
        self.client = client
        self.queue = queue
        self.home = home

    async def call(self, name: str, argument: Any, result_type: type) -> Any:
        handle = await self.client.start_activity(
            name, argument, id=uuid.uuid4().hex, task_queue=self.queue, result_type=result_type,
            start_to_close_timeout=timedelta(seconds=60), retry_policy=RetryPolicy(maximum_attempts=1),
        )  # fmt: skip
        return await asyncio.wait_for(handle.result(), 60)

    async def failure(self, name: str, argument: Any) -> ApplicationError:
        with pytest.raises(ActivityFailureError) as raised:
            await self.call(name, argument, dict)
        cause = raised.value.__cause__
        assert isinstance(cause, ApplicationError)
        return cause


@pytest.fixture
async def control(
    temporal_server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Control]:
    home = tmp_path / "home"
    monkeypatch.setenv("ANABASIS_HOME", str(home))
    client = await temporal_server.client()
    queue = f"control-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue, activities=NODE_ACTIVITIES):
        yield Control(client, queue=queue, home=home)
    await asyncio.to_thread(stop_all, home, grace_seconds=0.0)


def command(node: NodeIdentity, **changes: Any) -> NodeCommand:
    return NodeCommand.model_validate({"node": node, "provider": "local", "grace_seconds": 5.0} | changes)


async def test_a_node_is_requested_described_and_released(control: Control, temporal_server: TemporalServer) -> None:
    node = identity()
    handle = await control.call("request_node", request_for(node), NodeHandle)
    assert handle.provider == "local"
    folder = NodeFolder(control.home, node)
    assert temporal_server.address in folder.config.read_text()  # it will serve where its control worker does

    async def described() -> NodeDescription:
        return await control.call("describe_node", command(node), NodeDescription)

    async def runs() -> bool:
        return (await described()).state == "running"

    await wait_until(runs, seconds=30)
    released = await control.call("release_node", command(node), NodeDescription)
    assert released.state == "absent"
    assert alive(folder) == []
    assert (await described()).state == "absent"


async def test_failures_carry_their_kind_and_whether_to_try_again(control: Control) -> None:
    node = identity()
    failure = await control.failure("request_node", request_for(node, provider="nowhere"))
    assert (failure.type, failure.non_retryable) == ("InvalidSpec", True)
    await control.call("release_node", command(node), NodeDescription)
    failure = await control.failure("request_node", request_for(node))
    assert (failure.type, failure.non_retryable) == ("Fenced", True)
    other = identity()
    await control.call("request_node", request_for(other), NodeHandle)
    failure = await control.failure("request_node", request_for(identity(), provider_options={"max_nodes": 1}))
    assert (failure.type, failure.non_retryable) == ("CapacityError", False)


async def test_a_provider_that_does_not_answer_is_unknown(control: Control) -> None:
    node = identity()
    folder = NodeFolder(control.home, node)
    folder.path.mkdir(parents=True)
    folder.registration.mkdir()
    described = await control.call("describe_node", command(node), NodeDescription)
    assert described.state == "unknown"
