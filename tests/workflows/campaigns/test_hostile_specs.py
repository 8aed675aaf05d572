"""Inputs that nobody would write by hand: each ends its workflow at once, with words, and hangs nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from anabasis.campaign.spec import MAX_SPEC_BYTES
from tests.support.processes import Processes
from tests.workflows.campaigns.conftest import Running, open_workflows, quick_spec

FAILS_SECONDS = 60.0
"""Two seconds on an idle machine."""


async def failure_of(client: Client, raw: Any, *, name: str, workflow_id: str = "") -> ApplicationError:
    """How the workflow of this input fails; checks that it does so properly, at once and for good."""
    handle = await client.start_workflow(
        "TrainingCampaign", raw, id=workflow_id or f"campaign/{name}", task_queue="campaigns"
    )
    with pytest.raises(WorkflowFailureError) as raised:
        await asyncio.wait_for(handle.result(), FAILS_SECONDS)
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    assert await open_workflows(client, name) == []
    kinds = {event.event_type for event in (await handle.fetch_history()).events}
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in kinds
    return cause


async def problems_of(client: Client, raw: Any, *, name: str) -> dict[str, str]:
    """Path → text of an `InvalidSpec`."""
    cause = await failure_of(client, raw, name=name)
    assert (cause.type, cause.non_retryable) == ("InvalidSpec", True), cause.message
    return {str(problem["path"]): str(problem["text"]) for problem in cause.details[0]}


def as_json(text: str) -> RawValue:
    """Given as it is, as Temporal's own tools give what is typed."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=text.encode()))


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"fleeet": {"slots": 3}}, "fleeet", "did you mean fleet"),
        ({"training": {"inner_stepps": 3}}, "training.inner_stepps", "did you mean inner_steps"),
        ({"target": {"rounds": -5}}, "target.rounds", "got -5"),
        ({"fleet": {"slots": "many"}}, "fleet.slots", 'got "many"'),
        ({"fleet": {"provider": "moon"}}, "fleet.provider", "moon"),
        ({"rounds": {"min_contributors": 7}}, "rounds.min_contributors", "can never be met by 2 slots"),
        ({"rounds": {"quorum": 1.5}}, "rounds.quorum", "got 1.5"),
        ({"recipe_options": {"widht": 3}}, "recipe_options.widht", "width"),
        ({"data": {"url": "ftq://nowhere/x"}}, "data.url", "ftq"),
        ({"training": None}, "training", "null"),
        ({"data": []}, "data", "[]"),
    ],
)
async def test_each_mistake_is_told_with_its_mend(
    client: Client, change: dict[str, Any], path: str, words: str
) -> None:
    name = "hostile-" + path.replace(".", "-").replace("_", "-")
    problems = await problems_of(client, quick_spec(name, **change), name=name)
    assert list(problems) == [path]
    assert words in problems[path]


async def test_numbers_that_grow_when_they_are_written_again(client: Client) -> None:
    spec = quick_spec("hostile-numbers", recipe_options={"table": ["@"]})
    text = json.dumps(spec).replace('"@"', ",".join(["1e9"] * 475_000))  # as a Python float: three times as long
    problems = await problems_of(client, as_json(text), name="hostile-numbers")
    assert list(problems) == ["(spec)"]
    assert f"at most {MAX_SPEC_BYTES}" in problems["(spec)"]


async def test_thousands_of_unknown_fields(client: Client) -> None:
    spec = {**quick_spec("hostile-fields"), **{f"{number:x}": 1 for number in range(5_500)}}
    assert len(json.dumps(spec)) < MAX_SPEC_BYTES
    problems = await problems_of(client, spec, name="hostile-fields")
    assert "0" in problems


async def test_thousands_of_wrong_values(client: Client) -> None:
    spec = quick_spec("hostile-values", training={"betas": list(range(10_000))}, target={"rounds": -1})
    assert {"target.rounds"} <= set(await problems_of(client, spec, name="hostile-values"))


async def test_a_name_of_many_pages(client: Client) -> None:
    problems = await problems_of(client, quick_spec("n" * 60_000), name="hostile-name")
    assert list(problems) == ["name"]


async def test_a_name_that_is_no_text(client: Client) -> None:
    problems = await problems_of(client, {**quick_spec("x"), "name": {"first": "x"}}, name="hostile-name-object")
    assert list(problems) == ["name"]


async def test_numbers_that_are_none(client: Client) -> None:
    text = json.dumps(quick_spec("hostile-nan")).replace('"rounds": 4', '"rounds": NaN')
    cause = await failure_of(client, as_json(text), name="hostile-nan")
    assert cause.type == "InvalidSpec"


async def test_an_input_that_is_no_json(client: Client) -> None:
    cause = await failure_of(client, as_json("{name: demo"), name="hostile-json")
    assert "JSON" in cause.message


async def test_an_input_nested_too_deeply(client: Client) -> None:
    text = '{"name": "hostile-deep", "recipe_options": {"x": ' + "[" * 5_000 + "]" * 5_000 + "}}"
    assert "recursion" in (await failure_of(client, as_json(text), name="hostile-deep")).message


@pytest.mark.parametrize("depth", [50, 120, 180])
async def test_an_input_nested_deeply(client: Client, depth: int) -> None:
    text = json.dumps(quick_spec(f"hostile-{depth}", recipe_options={"x": ["@"]}))
    text = text.replace('"@"', "[" * depth + "]" * depth)
    told = set(await problems_of(client, as_json(text), name=f"hostile-{depth}"))
    # `tiny` has no option x; and beyond a limit, the depth alone is a problem.
    assert {"recipe_options.x"} <= told <= {"recipe_options", "recipe_options.x"}


async def test_more_than_the_server_takes_starts_nothing(client: Client) -> None:
    spec = quick_spec("hostile-size", recipe_options={"text": "x" * 3_000_000})
    with pytest.raises(RPCError) as raised:
        await client.start_workflow("TrainingCampaign", spec, id="campaign/hostile-size", task_queue="campaigns")
    assert raised.value.status is RPCStatusCode.INVALID_ARGUMENT
    with pytest.raises(RPCError) as missing:
        await client.get_workflow_handle("campaign/hostile-size").describe()
    assert missing.value.status is RPCStatusCode.NOT_FOUND


async def test_the_command_refuses_a_file_that_is_too_large(
    client: Client, running: Running, processes: Processes, tmp_path: Path
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(quick_spec("hostile-file", recipe_options={"text": "x" * 3_000_000})))
    command = processes.python(
        "-m", "anabasis.cli.main", "start", str(file), name="start", env={"TEMPORAL_ADDRESS": running.record.address}
    )
    assert command.wait(seconds=FAILS_SECONDS) == 2
    assert f"larger than {MAX_SPEC_BYTES} bytes" in command.text()
    assert await open_workflows(client, "hostile-file") == []
