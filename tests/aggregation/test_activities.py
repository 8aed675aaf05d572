"""The aggregator's activities, called by a workflow through a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.aggregation import AggregatorActivities
from activities.warm import WarmAggregators
from anabasis.campaign import messages as m
from anabasis.training.recipe import Recipe
from tests.aggregation.world import NAME, World, spec_for
from tests.support.wait import wait_until

torch.set_num_threads(1)

RESULTS: dict[str, Any] = {
    "preflight": m.PreflightReport,
    "prepare": m.PrepareResult,
    "advance_leg": m.LegResult,
    "write_checkpoint": m.CheckpointResult,
    "roll_back": m.RollbackResult,
    "publish_model": m.PublishResult,
}


@workflow.defn
class OneActivity:
    """Calls one activity; `cancel_it` cancels it and still returns its result."""

    def __init__(self) -> None:
        self.reports: list[m.ProgressReport] = []
        self.cancel = False

    @workflow.run
    async def run(
        self, name: str, request: dict[str, Any], attempts: int, queue: str | None = None, heartbeat_seconds: float = 10
    ) -> Any:
        handle = workflow.start_activity(
            name,
            request,
            task_queue=queue,
            result_type=RESULTS[name],
            start_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=attempts),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: handle.done() or self.cancel)
        if not handle.done():
            handle.cancel()
        return await handle

    @workflow.signal
    def progress(self, report: m.ProgressReport) -> None:
        self.reports.append(report)

    @workflow.signal
    def cancel_it(self) -> None:
        self.cancel = True

    @workflow.query
    def seen(self) -> list[m.ProgressReport]:
        return self.reports


@asynccontextmanager
async def serving(client: Client, queue: str) -> AsyncIterator[Worker]:
    activities = AggregatorActivities(client, loop=asyncio.get_running_loop())
    with ThreadPoolExecutor(8) as threads:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[OneActivity],
            activities=activities.all,
            activity_executor=threads,
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_cached_workflows=0,  # else its end is told to the worker that was stopped, which takes ten seconds
            graceful_shutdown_timeout=timedelta(seconds=5),
        ) as worker:
            yield worker


@pytest.fixture
def queue() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


async def started(client: Client, queue: str, name: str, request: m.Message, *, attempts: int = 1) -> Any:
    return await client.start_workflow(
        OneActivity.run,
        args=[name, request.model_dump(mode="json"), attempts],
        id=f"campaign/{NAME}",
        task_queue=queue,
        result_type=RESULTS[name],
    )


async def call(client: Client, queue: str, name: str, request: m.Message) -> Any:
    return await (await started(client, queue, name, request)).result()


async def test_a_campaign_from_preflight_to_publishing(tmp_path: Path, temporal_client: Client, queue: str) -> None:
    url = (tmp_path / "store").as_uri()
    spec = spec_for(tmp_path)
    async with serving(temporal_client, queue):
        report = await call(temporal_client, queue, "preflight", m.PreflightRequest(recipe="tiny", store=url))
        assert report.problems == []
        prepared = await call(
            temporal_client, queue, "prepare", m.PrepareRequest(spec=spec.model_dump(mode="json"), store_url=url)
        )
        assert prepared.parameters == 4_096
        world = World(tmp_path)
        for version in range(2):
            world.post(0, version=version)
            world.post(1, version=version)
            leg = await call(
                temporal_client,
                queue,
                "advance_leg",
                m.LegRequest(campaign=NAME, store_url=url, until_version=version + 1, from_version=version),
            )
            assert (leg.reason, leg.version, len(leg.nodes)) == ("until", version + 1, 2)
        checkpoint = await call(
            temporal_client,
            queue,
            "write_checkpoint",
            m.CheckpointRequest(campaign=NAME, store_url=url, version=2, keep=2),
        )
        assert checkpoint.version == 2
        rolled = await call(
            temporal_client,
            queue,
            "roll_back",
            m.RollbackRequest(campaign=NAME, store_url=url, from_version=2, not_after=2),
        )
        assert (rolled.version, rolled.restored) == (3, 2)
        model = await call(
            temporal_client, queue, "publish_model", m.PublishRequest(campaign=NAME, store_url=url, version=3)
        )
        assert (model.number, model.version) == (1, 3)


async def test_a_bad_spec_is_a_failure_that_is_not_tried_again(
    tmp_path: Path, temporal_client: Client, queue: str
) -> None:
    request = m.PrepareRequest(spec={"name": "Bad Name"}, store_url=(tmp_path / "store").as_uri())
    async with serving(temporal_client, queue):
        handle = await started(temporal_client, queue, "prepare", request, attempts=5)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert isinstance(caught.value.cause, ActivityError)
    failure = caught.value.cause.cause
    assert isinstance(failure, ApplicationError)
    assert (failure.type, failure.non_retryable) == ("InvalidSpec", True)


class Broken(Recipe):
    """A recipe whose model cannot be built."""

    def build_model(self, vocabulary_size: int, sequence_length: int) -> Any:
        raise RuntimeError("out of ideas")


async def test_a_recipe_that_raises_fails_with_its_traceback(
    tmp_path: Path, temporal_client: Client, queue: str
) -> None:
    spec = spec_for(tmp_path, recipe="tests.aggregation.test_activities:Broken")
    request = m.PrepareRequest(spec=spec.model_dump(mode="json"), store_url=(tmp_path / "store").as_uri())
    async with serving(temporal_client, queue):
        handle = await started(temporal_client, queue, "prepare", request, attempts=5)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    assert isinstance(caught.value.cause, ActivityError)
    failure = caught.value.cause.cause
    assert isinstance(failure, ApplicationError)
    assert failure.type == "UserCodeError"
    assert "out of ideas" in failure.message
    assert 'raise RuntimeError("out of ideas")' in failure.message


async def test_a_cancelled_leg_returns_what_was_committed(tmp_path: Path, temporal_client: Client, queue: str) -> None:
    world = World(tmp_path)
    world.post(0)
    world.post(1)
    request = m.LegRequest(campaign=NAME, store_url=world.url, until_version=9, from_version=0)
    async with serving(temporal_client, queue):
        handle = await started(temporal_client, queue, "advance_leg", request)
        await wait_until(lambda: world.newest.version == 1, seconds=20)
        await handle.signal(OneActivity.cancel_it)
        result = await asyncio.wait_for(handle.result(), 20)
    assert (result.reason, result.version) == ("interrupted", 1)
    assert [node.rounds for node in result.nodes] == [1, 1]


async def test_progress_is_signalled(tmp_path: Path, temporal_client: Client, queue: str) -> None:
    world = World(tmp_path, rounds={"min_deadline_seconds": 0.2, "stalled_after_seconds": 0.3})
    request = m.LegRequest(campaign=NAME, store_url=world.url, until_version=3, from_version=0, progress_seconds=0.1)
    world.post(0)
    world.post(1)
    async with serving(temporal_client, queue):
        handle = await started(temporal_client, queue, "advance_leg", request)

        async def reported(version: int, words: str) -> bool:
            reports = await handle.query(OneActivity.seen)
            return any(item.version == version and words in item.waiting_for for item in reports)

        await wait_until(lambda: reported(1, ""), seconds=20)
        world.post(0)
        world.post(1)
        await wait_until(lambda: reported(2, "stalled for"), seconds=30)
        world.post(0)
        world.post(1)
        assert (await handle.result()).version == 3


async def test_a_worker_that_stops_lets_go_of_its_leg(tmp_path: Path, temporal_client: Client, queue: str) -> None:
    world = World(tmp_path)
    request = m.LegRequest(campaign=NAME, store_url=world.url, until_version=1, from_version=0)
    async with serving(temporal_client, queue) as worker:
        handle = await started(temporal_client, queue, "advance_leg", request)
        await wait_until(lambda: is_running(handle), seconds=20)
        await asyncio.wait_for(worker.shutdown(), 10)
    async with serving(temporal_client, queue):
        result = await asyncio.wait_for(handle.result(), 20)
    assert (result.reason, result.detail) == ("interrupted", "the worker is shutting down")


async def is_running(handle: Any) -> bool:
    pending = (await handle.describe()).raw_description.pending_activities
    return bool(pending) and pending[0].attempt >= 1 and pending[0].HasField("last_started_time")


def test_two_attempts_never_share_an_aggregator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    monkeypatch.setattr("activities.warm.HANDOVER_SECONDS", 0.5)
    warm = WarmAggregators(identity="test")
    with (
        warm.borrowed(world.url, campaign=NAME, tick=lambda _: None) as first,
        warm.borrowed(world.url, campaign=NAME, tick=lambda _: None) as second,
    ):
        assert first is not second
    with warm.borrowed(world.url, campaign=NAME, tick=lambda _: None) as third:
        assert third is second


def test_only_a_few_campaigns_stay_in_memory(tmp_path: Path) -> None:
    warm = WarmAggregators(identity="test", max_warm=2)
    borrowed = []
    for number in range(4):
        with warm.borrowed((tmp_path / str(number)).as_uri(), campaign=NAME, tick=lambda _: None) as aggregator:
            borrowed.append(aggregator)
    with warm.borrowed((tmp_path / "3").as_uri(), campaign=NAME, tick=lambda _: None) as again:
        assert again is borrowed[3]
    with warm.borrowed((tmp_path / "0").as_uri(), campaign=NAME, tick=lambda _: None) as anew:
        assert anew is not borrowed[0]
