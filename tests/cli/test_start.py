"""`anabasis start`: from a file, from stdin, with overrides; and everything that can be wrong with a spec."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from anabasis.campaign.spec import MAX_SPEC_BYTES
from anabasis.cli import exits
from tests.cli.conftest import Cli
from tests.support.temporal import TemporalServer

pytestmark = pytest.mark.usefixtures("temporal_env")


def _file(folder: Path, text: str, *, name: str = "campaign.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_yaml_file_with_overrides_runs_to_its_result(cli_run: Cli, name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, f"name: {name}\ntarget: {{rounds: 3}}\n")
    outcome = cli_run("start", path, "--set", "target.rounds=4", "--wait", "--json")
    assert outcome.code == exits.OK, outcome
    result = json.loads(outcome.out)
    assert (result["name"], result["version"], result["model"]) == (name, 4, name)


def test_json_file_and_name_option(cli_run: Cli, name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, '{"name": "other", "target": {"rounds": 2}}', name="campaign.json")
    outcome = cli_run("start", path, "--name", name, "--json")
    assert outcome.code == exits.OK, outcome
    summary = json.loads(outcome.out)
    assert (summary["name"], summary["workflow_id"]) == (name, f"campaign/{name}")
    assert cli_run("start", "--name", name, "--again", "--wait").code in (exits.OK, exits.REFUSED)


def test_spec_from_stdin(cli_run: Cli, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"name: {name}\ntarget: {{rounds: 1}}".encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    outcome = cli_run("start", "-", "--wait")
    assert outcome.code == exits.OK, outcome
    assert f"Campaign {name} has completed at version 1, published as {name} 1" in outcome.out


def test_a_name_is_enough_and_the_answer_says_how_to_go_on(cli_run: Cli, name: str) -> None:
    outcome = cli_run("start", "--name", name, "--set", "recipe_options.round_seconds=60")
    assert outcome.code == exits.OK, outcome
    assert f"anabasis watch {name}" in outcome.out
    taken = cli_run("start", "--name", name)
    assert taken.code == exits.REFUSED
    assert f"campaign {name} is running" in taken.err
    assert cli_run("cancel", name).code == exits.OK


def test_completed_names_need_again(cli_run: Cli, name: str) -> None:
    arguments = ("start", "--name", name, "--set", "target.rounds=1", "--wait")
    assert cli_run(*arguments).code == exits.OK
    refused = cli_run(*arguments)
    assert refused.code == exits.REFUSED
    assert "--again" in refused.err
    assert cli_run(*arguments, "--again", "--set", "target.rounds=2").code == exits.OK


def test_wait_tells_of_failure_by_exit_code(cli_run: Cli, name: str) -> None:
    outcome = cli_run("start", "--name", name, "--set", "recipe_options.fail_at=2", "--wait")
    assert outcome.code == exits.CAMPAIGN_ENDED_BADLY
    assert "shapes do not match" in outcome.err
    assert "Traceback" not in outcome.err


def test_check_shows_the_whole_spec_and_starts_nothing(cli_run: Cli, name: str) -> None:
    outcome = cli_run("start", "--name", name, "--set", "fleet.slots=2", "--check")
    assert outcome.code == exits.OK
    shown = yaml.safe_load(outcome.out)
    assert (shown["name"], shown["fleet"]["slots"], shown["training"]["inner_steps"]) == (name, 2, 20)
    assert json.loads(cli_run("start", "--name", name, "--check", "--json").out)["name"] == name
    assert cli_run("status", name).code == exits.NOT_FOUND


def test_every_problem_is_named_by_its_path(cli_run: Cli, tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        """
        name: Bad Name
        fleet: {slots: -3, sloots: 4}
        training: {inner_steps: many, betas: [0.9]}
        target: {rounds: 0}
        rubbish: true
        """,
    )
    outcome = cli_run("start", path)
    assert outcome.code == exits.USAGE
    for problem in (
        "name: ",
        "fleet.slots: ",
        "fleet.sloots: unknown field; did you mean slots?",
        "training.inner_steps: ",
        "training.betas.1: ",
        "target.rounds: ",
        "rubbish: unknown field",
    ):
        assert f"anabasis: {problem}" in outcome.err, problem
    assert "got -3" in outcome.err


def test_contradictions_across_sections_are_all_named(cli_run: Cli) -> None:
    outcome = cli_run(
        "start", "--name", "x", "--set", "rounds.min_contributors=9", "--set", "data.partitions=2",
        "--set", "training.min_inner_steps=50",
    )  # fmt: skip
    assert outcome.code == exits.USAGE
    assert "rounds.min_contributors: 9 can never be met by 4 slots" in outcome.err
    assert "data.partitions: 2 is less than fleet.slots = 4" in outcome.err
    assert "training.min_inner_steps: 50 exceeds training.inner_steps = 20" in outcome.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: demo\nfleet: [", "line 2"),
        ("name: demo\n\tfleet: 1", "line 2"),
        ("name: demo\nname: other", "line 2, column 1: the key 'name' appears twice"),
        ("- name: demo", "must be a mapping"),
        ("", "is empty"),
        ("just words", "must be a mapping"),
        ("name: !!python/object/apply:os.getcwd []", "line 1"),
        ("name: demo\n---\nname: other", "line 2"),
        ("name: demo\nfleet: {slots: " + "9" * 5_000 + "}", "Exceeds the limit"),
        ("name: " + "[" * 3_000, "nested too deeply"),
        ("a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in ("ab", "bc", "cd", "de", "ef", "fg")
        ), "more than 20000 values"),
        ("name: &n [*n]", "more than 20000 values"),
        ("recipe_options: {1: 2}\nname: demo", "recipe_options"),
    ],
)  # fmt: skip
def test_malformed_yaml_is_one_line_with_its_place(cli_run: Cli, tmp_path: Path, text: str, problem: str) -> None:
    outcome = cli_run("start", _file(tmp_path, text), "--check")
    assert outcome.code == exits.USAGE, outcome
    assert problem in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "demo",}', "line 1, column 17"),
        ('{"name": "demo", "name": "other"}', "the key 'name' twice"),
        ('{"name": "demo", "target": {"loss": NaN}}', "NaN"),
        ("[1]", "must be a mapping"),
        ("[" * 100_000, "larger than 65536 bytes"),
        ("[" * 50_000, "nested too deeply"),
    ],
)
def test_malformed_json_is_one_line_with_its_place(cli_run: Cli, tmp_path: Path, text: str, problem: str) -> None:
    outcome = cli_run("start", _file(tmp_path, text, name="campaign.json"), "--check")
    assert outcome.code == exits.USAGE, outcome
    assert problem in outcome.err


def test_three_megabytes_are_refused_without_reading_them_all(cli_run: Cli, tmp_path: Path) -> None:
    spec = {"name": "demo", "recipe_options": {"data": "x" * 3_000_000}}
    outcome = cli_run("start", _file(tmp_path, json.dumps(spec), name="campaign.json"))
    assert outcome.code == exits.USAGE
    assert f"is larger than {MAX_SPEC_BYTES} bytes" in outcome.err
    assert len(outcome.err) < 500
    assert cli_run("start", "/dev/zero").code == exits.USAGE


def test_files_that_cannot_be_read_are_named(cli_run: Cli, tmp_path: Path) -> None:
    missing = cli_run("start", tmp_path / "none.yaml")
    assert missing.code == exits.NOT_FOUND
    assert "anabasis spec --example" in missing.err
    assert cli_run("start", tmp_path).code == exits.USAGE
    (tmp_path / "latin.yaml").write_bytes("name: demo\n# f\xfcr\n".encode("latin-1"))
    assert "line 2: is not UTF-8" in cli_run("start", tmp_path / "latin.yaml").err


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("training.inner_steps", "is not PATH=VALUE"),
        ("=5", "is not PATH=VALUE"),
        ("training..x=5", "is not PATH=VALUE"),
        ("name.first=5", "name is 'demo', not a section"),
        ("training.inner_step=5", "did you mean inner_steps?"),
        ("training.inner_lr=fast", "training.inner_lr"),
        ("training.inner_lr=.nan", "training.inner_lr"),
    ],
)
def test_bad_overrides_say_what_is_wrong(cli_run: Cli, assignment: str, problem: str) -> None:
    outcome = cli_run("start", "--name", "demo", "--set", assignment)
    assert outcome.code == exits.USAGE
    assert problem in outcome.err


@pytest.mark.parametrize(
    ("assignment", "section", "field", "value"),
    [
        ("training.inner_lr=3e-3", "training", "inner_lr", 3e-3),
        ("training.betas=[0.8, 0.9]", "training", "betas", [0.8, 0.9]),
        ("training.gradient_clip=null", "training", "gradient_clip", None),
        ("data.url=s3://bucket/a=b?c*d", "data", "url", "s3://bucket/a=b?c*d"),
        ("recipe_options.width=64", "recipe_options", "width", 64),
        ("recipe_options.name=no", "recipe_options", "name", "no"),
    ],
)
def test_overrides_are_yaml_values(cli_run: Cli, assignment: str, section: str, field: str, value: object) -> None:
    outcome = cli_run("start", "--name", "demo", "--set", assignment, "--check", "--json")
    assert outcome.code == exits.OK, outcome
    assert json.loads(outcome.out)[section][field] == value


def test_a_campaign_without_workers_is_started_and_the_reason_it_waits_is_told(
    cli_run: Cli, own_temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", own_temporal_server.address)
    outcome = cli_run("start", "--name", "lonely")
    assert outcome.code == exits.OK
    assert "anabasis up" in outcome.err
    shown = cli_run("status", "lonely")
    assert shown.code == exits.UNAVAILABLE
    assert "no worker serves the queue campaigns" in shown.err
    assert json.loads(cli_run("list", "--json").out)[0]["phase"] == "validating"
    cancelled = cli_run("cancel", "lonely")
    assert cancelled.code == exits.OK
    assert "it ends when one does: anabasis up" in cancelled.err
