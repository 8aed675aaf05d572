"""`anabasis doctor`: every finding says what it is and, unless all is well, the mend."""

from __future__ import annotations

import json
import socket

import pytest

from anabasis.cli import exits
from tests.support.processes import Processes
from tests.support.temporal import TemporalServer
from workers import doctor
from workers.temporal_server import find_program, free_port


def _by_name(checks: list[doctor.Check]) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks}


def test_here_everything_needed_is_installed() -> None:
    checks = doctor.examine()
    assert [check for check in checks if check.status == "missing"] == []
    assert all(check.mend for check in checks if check.status != "ok")
    assert str(find_program()) in _by_name(checks)["temporal program"].detail


def test_without_temporal_the_mend_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    found = _by_name(doctor.examine())["temporal"]
    assert found.status == "warning"
    assert "anabasis up" in found.mend


def test_temporal_without_workers_is_told_apart(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    found = _by_name(doctor.examine())
    assert found["temporal"].status == "ok"
    assert "control worker" in found


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name not in ("boto3", "torch"))
    found = _by_name(doctor.examine())
    assert found["packages for stores on S3"].detail == "without boto3"
    assert "pip install 'anabasis[s3]'" in found["packages for stores on S3"].mend
    assert found["packages for nodes and the aggregator"].status == "missing"
    assert found["packages for every part"].status == "ok"


def test_an_s3_store_without_credentials_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABASIS_STORE", "s3://bucket/prefix")
    found = _by_name(doctor.examine())["store"]
    assert (found.status, "AWS_ACCESS_KEY_ID" in found.mend) == ("missing", True)


def test_a_taken_default_port_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        port = mine.getsockname()[1]
        monkeypatch.setattr(doctor, "DEFAULT_PORT", port)
        found = _by_name(doctor.examine())[f"port {port}"]
    assert found.status == "warning"
    assert "--port" in found.mend


def test_the_command_speaks_json_and_by_its_exit_code(processes: Processes) -> None:
    well = processes.python("-m", "anabasis.cli.main", "doctor", "--json", name="doctor")
    ill = processes.python(
        "-m", "anabasis.cli.main", "doctor", "--json", name="doctor", env={"ANABASIS_STORE": "s3://bucket"}
    )
    assert (well.wait(seconds=90), ill.wait(seconds=90)) == (exits.OK, exits.FAILED)
    assert {"python", "disk", "torch devices"} <= {check["name"] for check in json.loads(well.text())}
