"""Commands that steer a campaign, `list` and `status`, against a real server and worker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from anabasis.campaign.messages import Receipt
from anabasis.campaign.status import CampaignStatus
from anabasis.cli import exits
from tests.cli.conftest import Cli
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.usefixtures("temporal_env")


@pytest.fixture
def running(cli_run: Cli, name: str) -> Iterator[str]:
    """A campaign that takes long."""
    outcome = cli_run(
        "start", "--name", name, "--set", "recipe_options.round_seconds=1", "--set", "target.rounds=1000",
        "--set", "recipe_options.incident_at=1",
    )  # fmt: skip
    assert outcome.code == exits.OK, outcome
    yield name
    cli_run("cancel", name)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pause", "--reason", "lunch", "--release-nodes"), "without nodes"),
        (("scale", 7), "wants 7 nodes"),
        (("drain", 2, "--reason", "noisy fan"), "drains slot 2"),
        (("extend", "--rounds", 2_000), "goes on to round 2000"),
        (("budget", "--max-cost", "2.5", "--max-node-hours", "none"), "may cost 2.5 and use None"),
        (("checkpoint",), "checkpoint"),
        (("approve",), "publishes"),
    ],
)
def test_commands_are_answered_in_words_and_json(
    cli_run: Cli, running: str, arguments: tuple[object, ...], text: str
) -> None:
    command, *rest = arguments
    outcome = cli_run(command, running, *rest)
    assert outcome.code == exits.OK, outcome
    assert outcome.out.startswith(f"{running}: ")
    assert text in outcome.out
    receipt = Receipt.model_validate_json(cli_run(command, running, *rest, "--json").out)
    assert text in receipt.text
    assert receipt.phase in ("training", "paused")


def test_resume_is_refused_unless_paused(cli_run: Cli, running: str) -> None:
    outcome = cli_run("resume", running)
    assert outcome.code == exits.REFUSED
    assert f"campaign {running} refuses to resume: it is not paused" in outcome.err
    assert cli_run("pause", running).code == exits.OK
    assert cli_run("resume", running).code == exits.OK


@pytest.mark.parametrize(
    "arguments",
    [
        ("scale", "x", 0),
        ("scale", "x", "many"),
        ("scale", "x"),
        ("drain", "x", -1),
        ("extend", "x"),
        ("extend", "x", "--rounds", 0),
        ("budget", "x"),
        ("budget", "x", "--max-cost", "5"),
        ("budget", "x", "--max-cost", "-5", "--max-node-hours", "none"),
        ("budget", "x", "--max-cost", "inf", "--max-node-hours", "none"),
        ("watch", "x", "--every", 0),
        ("pause",),
        ("no-such-command",),
        ("list", "--no-such-option"),
    ],
)
def test_wrong_command_lines_are_usage_errors(cli_run: Cli, arguments: tuple[object, ...]) -> None:
    outcome = cli_run(*arguments)
    assert outcome.code == exits.USAGE, outcome
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",), ("watch",), ("pause",), ("resume",), ("scale", 3), ("drain", 0), ("extend", "--rounds", 9),
        ("budget", "--max-cost", "none", "--max-node-hours", "none"), ("checkpoint",), ("approve",), ("cancel",),
    ],
)  # fmt: skip
def test_unknown_campaigns_have_their_own_exit_code(cli_run: Cli, arguments: tuple[object, ...]) -> None:
    command, *rest = arguments
    outcome = cli_run(command, "no-such-campaign", *rest)
    assert outcome.code == exits.NOT_FOUND, outcome
    assert "no-such-campaign" in outcome.err


def test_cancel_waits_for_the_end_when_told_to(cli_run: Cli, running: str) -> None:
    outcome = cli_run("cancel", running, "--wait", "--reason", "enough")
    assert outcome.code == exits.OK, outcome
    assert "has ended" in outcome.out
    assert CampaignStatus.model_validate_json(cli_run("status", running, "--json").out).phase == "cancelled"
    again = cli_run("cancel", running)
    assert again.code == exits.REFUSED
    assert "is over (cancelled)" in again.err
    assert cli_run("pause", running).code == exits.REFUSED


def test_status_shows_progress_nodes_and_incidents(cli_run: Cli, running: str) -> None:
    wait_until_sync(lambda: json.loads(cli_run("status", running, "--json").out)["merged_rounds"] >= 2, seconds=20)
    outcome = cli_run("status", running)
    assert outcome.code == exits.OK
    for text in (running, "training", "of 1000", "4 of 4 nodes ready", "0-2", "standin", "node 0-1 went silent"):
        assert text in outcome.out, text
    assert "replaced; mended after 3.0 s" in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 120


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_status_fits_the_width_of_the_terminal(
    cli_run: Cli, running: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = cli_run("status", running)
    assert outcome.code == exits.OK
    assert max(len(line) for line in outcome.out.splitlines()) <= columns


def test_status_tells_how_a_failed_campaign_ended(cli_run: Cli, name: str) -> None:
    cli_run("start", "--name", name, "--set", "recipe_options.fail_at=1", "--wait")
    outcome = cli_run("status", name)
    assert outcome.code == exits.OK
    assert "failed" in outcome.out
    assert "ValueError: shapes do not match" in outcome.out


def test_list_has_every_campaign_once_with_its_numbers(cli_run: Cli, name: str, running: str) -> None:
    cli_run(
        "start", "--name", f"{name}-b", "--set", "target.rounds=4", "--set", "recipe_options.continue_every=2", "--wait"
    )

    def mine() -> list[dict[str, object]]:
        listed = json.loads(cli_run("list", "--json").out)
        return [one for one in listed if one["name"] in (running, f"{name}-b")]

    wait_until_sync(lambda: {one["phase"] for one in mine()} == {"training", "completed"}, seconds=15)
    assert sorted(one["name"] for one in mine()) == sorted([running, f"{name}-b"])
    completed = next(one for one in mine() if one["name"] == f"{name}-b")
    assert (completed["round"], completed["state"]) == (4, "completed")
    text = cli_run("list").out
    assert running in text
    assert "3.0000" in next(line for line in text.splitlines() if f"{name}-b" in line)
    only_running = [one["name"] for one in json.loads(cli_run("list", "--running", "--json").out)]
    assert running in only_running
    assert f"{name}-b" not in only_running
