"""What makes the project installable and keeps its shape: pins, scripts, the compose file, file sizes."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

from anabasis.campaign.attributes import SEARCH_ATTRIBUTES
from tests.support.processes import REPOSITORY
from tests.support.temporal import TemporalServer
from workers import temporal_server
from workers.temporal_server import find_program

MAX_LINES = 600
SOURCE_FOLDERS = ("anabasis", "workflows", "activities", "workers", "tests", "benchmarks", "scripts", "infra")


def _sources() -> list[Path]:
    return [path for folder in SOURCE_FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]


def test_no_source_file_is_longer_than_what_one_reads_in_one_go() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in _sources()}
    assert {name: lines for name, lines in lengths.items() if lines >= MAX_LINES} == {}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_declared_requirement_is_pinned() -> None:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {_normal(re.split(r"[\[<>=!~;\s]", requirement)[0]) for requirement in declared} - {"anabasis"}
    pins = dict(
        line.split("==")
        for line in (REPOSITORY / "requirements/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    assert names - {_normal(name) for name in pins} == set()
    assert pins["torch"] == "2.13.0"
    assert [version for version in pins.values() if "+" in version] == [], "a build of one machine, not a version"


def test_shell_scripts_parse() -> None:
    scripts = [*(REPOSITORY / "scripts").glob("*.sh"), REPOSITORY / ".ci" / "run"]
    for script in scripts:
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0, script


def _choose_python(asked: str, *, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", 'source scripts/python.sh; choose_python "$1"', "choose", asked],
        cwd=REPOSITORY,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_setup_says_in_one_line_when_python_is_too_old(tmp_path: Path) -> None:
    _program(tmp_path / "python3", '[ "$1" = --version ] && echo Python 3.8.1 && exit 0; exit 1')
    chosen = _choose_python("", path=str(tmp_path))
    assert chosen.returncode == 1
    assert chosen.stderr.splitlines() == [
        "setup: no Python 3.11 or newer found (Python 3.8.1): install one, or run make PYTHON=/path/to/python"
    ]


def test_setup_says_in_one_line_when_the_venv_module_is_missing(tmp_path: Path) -> None:
    _program(tmp_path / "python3", '[[ "$2" == *ensurepip* ]] && exit 1; exit 0')
    chosen = _choose_python("", path=str(tmp_path))
    assert chosen.returncode == 1
    assert "python3 cannot make virtual environments" in chosen.stderr
    assert "python3-venv" in chosen.stderr


def test_setup_takes_the_python_that_is_asked_for() -> None:
    chosen = _choose_python(sys.executable, path=os.environ["PATH"])
    assert chosen.stdout.strip() == sys.executable


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "docker-compose.temporal.yml").read_text())


def test_the_compose_file_publishes_on_this_machine_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_lasting_service_of_the_compose_file_has_a_health_check(compose: dict[str, Any]) -> None:
    lasting = {name for name, service in compose["services"].items() if service["restart"] == "unless-stopped"}
    assert lasting == {"postgres", "temporal", "ui"}
    assert all("healthcheck" in compose["services"][name] for name in lasting)


def test_the_compose_file_switches_on_what_the_embedded_server_does(compose: dict[str, Any]) -> None:
    switches = yaml.safe_load(compose["configs"]["dynamic_config"]["content"])
    assert {key: str(values[0]["value"]).lower() for key, values in switches.items()} == temporal_server.DYNAMIC_CONFIG


async def test_the_compose_files_namespace_script_works_and_can_be_repeated(
    compose: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by a real shell with the real `temporal` program, against a server that has no attributes yet."""
    with monkeypatch.context() as bare:
        bare.setattr(temporal_server, "SEARCH_ATTRIBUTES", {})
        server = TemporalServer.started(tmp_path / "temporal")
    try:
        service = compose["services"]["namespace"]
        script = service["command"][0].replace("$$", "$")
        env = {
            "PATH": f"{find_program().parent}:{os.environ['PATH']}",
            "TEMPORAL_ADDRESS": server.address,
            "HOME": str(tmp_path),
        }
        for _ in range(2):
            run = functools.partial(subprocess.run, env=env, check=True, capture_output=True)
            await asyncio.to_thread(run, [*service["entrypoint"], script])
        client = await server.client()
        listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
        assert SEARCH_ATTRIBUTES.keys() <= listed.custom_attributes.keys()
        await temporal_server.prepare_namespace(client)  # raises when a type differs
    finally:
        server.kill()
