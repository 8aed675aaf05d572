"""A spec that is wrong fails the workflow at once, with all of its problems, and never hangs it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from tests.support.stack import small_spec
from tests.workflows.conftest import SECONDS

pytestmark = pytest.mark.slow

NOTHING = object()


async def fails(client: Client, name: str, spec: Any, *, workflow_id: str = "") -> list[dict[str, str]]:
    """Start a campaign by Temporal's own client; the problems that it fails with."""
    given = {} if spec is NOTHING else {"arg": spec}
    handle = await client.start_workflow(
        "TrainingCampaign", id=workflow_id or f"campaign/{name}", task_queue="campaigns", **given
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), SECONDS)
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("InvalidSpec", True)
    kinds = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds
    (problems,) = cause.details
    for problem in problems:
        assert f"{problem['path']}: {problem['text']}" in cause.message
    return list(problems)


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({"rubbish": 1}, {"rubbish"}),
        ({"fleet": {"slots": -1}}, {"fleet.slots"}),
        ({"fleet": {"slots": 2}, "rounds": {"min_contributors": 5}}, {"rounds.min_contributors"}),
        ({"rounds": {"quorum": 1.5}}, {"rounds.quorum"}),
        ({"recipe": "no_such_package.models:Mine"}, {"recipe"}),
        ({"data": {"url": "file:///no/such/text"}}, {"data.url"}),
        ({"fleet": {"provider": "nobody"}}, {"fleet.provider"}),
        ({"store": "gopher://old/store"}, {"store"}),
        (
            {"rubbish": 1, "target": {"rounds": "many"}, "recipe": "no_such:One", "data": {"url": "file:///no/text"}},
            {"rubbish", "target.rounds", "recipe", "data.url"},
        ),
    ],
)
async def test_all_problems_are_told_by_path(
    client: Client, name: str, change: dict[str, Any], paths: set[str]
) -> None:
    problems = await fails(client, name, {"name": name, **change})
    assert paths <= {problem["path"] for problem in problems}


@pytest.mark.parametrize("spec", ["campaign", ["a", "b"], 7, None, True, NOTHING, {}])
async def test_input_of_another_kind_is_told(client: Client, name: str, spec: Any) -> None:
    assert await fails(client, name, spec)


async def test_an_id_that_is_not_the_campaigns_is_told(client: Client, name: str) -> None:
    problems = await fails(client, name, small_spec(name, rounds=1), workflow_id=f"my-{name}")
    assert [problem["path"] for problem in problems] == ["name"]
    assert f"campaign/{name}" in problems[0]["text"]


async def test_a_spec_of_almost_two_megabytes_is_told(client: Client, name: str) -> None:
    spec = {"name": name, "recipe_options": {"table": "x" * 1_900_000}}
    assert await fails(client, name, spec)


async def test_three_megabytes_are_refused_by_temporal_and_nothing_runs(client: Client, name: str) -> None:
    with pytest.raises(RPCError, match=r"(?i)limit|large|size"):
        await client.start_workflow(
            "TrainingCampaign",
            {"name": name, "recipe_options": {"table": "x" * 3_000_000}},
            id=f"campaign/{name}",
            task_queue="campaigns",
        )
    running = [
        one.id
        async for one in client.list_workflows(f'WorkflowId = "campaign/{name}"')
        if one.status is WorkflowExecutionStatus.RUNNING
    ]
    assert running == []
