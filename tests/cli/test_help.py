"""Help, completion, the spec's documentation, and Temporal that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.cli import exits
from anabasis.cli.options import complete_names
from anabasis.training.recipe import load_recipe
from tests.cli.conftest import Cli, StartCli
from tests.support.processes import REPOSITORY
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until_sync
from workers.temporal_server import free_port

COMMANDS = (
    "start", "list", "status", "watch", "spec", "pause", "resume", "scale", "drain", "extend", "budget", "checkpoint",
    "approve", "cancel", "models", "export", "report", "compare",
)  # fmt: skip


def test_help_names_every_command_and_exit_code(cli_run: Cli) -> None:
    outcome = cli_run("--help")
    assert outcome.code == exits.OK
    for command in COMMANDS:
        assert f" {command} " in outcome.out, command
    text = " ".join(outcome.out.split())
    for code in ("0 done", "2 wrong command line or spec", "3 no such", "4 Temporal", "5 not possible", "130 Ctrl-C"):
        assert code in text, code


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli_run: Cli, command: str) -> None:
    outcome = cli_run(command, "--help")
    assert outcome.code == exits.OK
    assert f"anabasis {command}" in outcome.out


def test_the_documented_spec_is_a_valid_one_and_has_every_section(cli_run: Cli) -> None:
    outcome = cli_run("spec")
    assert outcome.code == exits.OK
    assert parse_spec(yaml.safe_load(outcome.out)) == CampaignSpec(name="demo")
    assert "# local optimizer steps per round" in outcome.out


def test_the_example_is_a_valid_spec_of_an_existing_recipe(cli_run: Cli, tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(cli_run("spec", "--example").out)
    checked = cli_run("start", path, "--check", "--json")
    assert checked.code == exits.OK, checked
    spec = parse_spec(json.loads(checked.out))
    assert load_recipe(spec.recipe, spec.recipe_options).config()["layers"] == 2


def test_the_json_schema_describes_every_field(cli_run: Cli) -> None:
    schema = json.loads(cli_run("spec", "--json-schema").out)
    assert set(schema["properties"]) == set(CampaignSpec.model_fields)
    assert schema["required"] == ["name"]
    assert cli_run("spec", "--json-schema", "--example").code == exits.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",), ("status", "x"), ("watch", "x"), ("start", "--name", "x"), ("pause", "x"), ("cancel", "x"),
        ("scale", "x", 3),
    ],
)  # fmt: skip
def test_no_temporal_is_one_line_that_says_what_to_do(
    cli_run: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    outcome = cli_run(*arguments)
    assert outcome.code == exits.UNAVAILABLE
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert "anabasis up" in outcome.err


def test_a_bad_spec_is_said_before_temporal_is_asked(cli_run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    assert cli_run("start", "--name", "Bad Name").code == exits.USAGE


def test_names_of_campaigns_are_completed(temporal_env: TemporalServer, cli_run: Cli, name: str) -> None:
    assert cli_run("start", "--name", name, "--set", "target.rounds=1", "--wait").code == exits.OK
    wait_until_sync(lambda: name in complete_names(name[:-1]), seconds=60)
    assert complete_names("zzz") == []
    env = {**os.environ, "_ANABASIS_COMPLETE": "complete_bash", "COMP_WORDS": f"anabasis status {name[:4]}",
           "COMP_CWORD": "2"}  # fmt: skip

    def completed() -> bool:
        # Completion gives up quickly, so that a shell never hangs: on a busy machine it may need another try.
        done = subprocess.run(
            [sys.executable, "-m", "anabasis.cli.main"], env=env, cwd=REPOSITORY, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return name in done.stdout.split()

    wait_until_sync(completed, seconds=90)


def test_completion_is_silent_without_temporal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    assert complete_names("") == []
    assert capfd.readouterr().err == ""


def test_the_program_itself_has_these_exit_codes(
    temporal_env: TemporalServer, start_cli: StartCli, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(f"name: {name}\ntarget: {{rounds: 2}}\n")
    started = start_cli("start", path, "--wait", "--json")
    assert started.wait() == exits.OK
    assert json.loads(started.text())["version"] == 2
    path.write_text("name: [")
    for expected, arguments in (
        (exits.USAGE, ("start", path)),
        (exits.NOT_FOUND, ("status", "no-such-campaign")),
        (exits.REFUSED, ("pause", name)),
    ):
        process = start_cli(*arguments)
        assert process.wait() == expected, process.text()
        assert "Traceback" not in process.text()
    unreachable = start_cli("list", env={"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"})
    assert unreachable.wait() == exits.UNAVAILABLE


def test_terminals_that_know_only_ascii_get_what_they_can_show(
    temporal_env: TemporalServer, start_cli: StartCli, cli_run: Cli, name: str
) -> None:
    assert cli_run("start", "--name", name, "--set", "target.rounds=1", "--wait").code == exits.OK
    shown = start_cli("status", name, env={"PYTHONIOENCODING": "ascii"})
    assert shown.wait() == exits.OK, shown.text()
    assert name in shown.text()
