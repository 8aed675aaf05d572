"""Fixtures for every test.

Temporal: `temporal_server` is one real dev server for the whole session (one per xdist process) that tests share:
use workflow ids and task queues of your own, and do not stop it. `own_temporal_server` is one for this test alone,
to kill and restart. `temporal_client` is a client of the shared one.

The environment is clean in every test: no AWS, Temporal or Anabasis variable of the developer's own gets in, and the
state directory is a temporary one.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from temporalio.client import Client

from tests.support.processes import Processes
from tests.support.temporal import TemporalServer
from workers.connect import RUNTIME_REST_SECONDS

_FOREIGN_PREFIXES = ("TEMPORAL_", "ANABASIS_", "AWS_")

# Test machines are small and run several processes: one thread each, or they fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shared machines are slow at times; a deadline per example would only measure that.
settings.register_profile("anabasis", deadline=None, print_blob=True)
settings.load_profile("anabasis")

# See workers.connect: without it, a test run that used Temporal can abort after it has succeeded.
atexit.register(time.sleep, RUNTIME_REST_SECONDS)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of the machine reaches a test or the processes that it starts."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANABASIS_HOME", str(tmp_path / "anabasis-home"))
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """One real dev server, shared: never stop or kill it in a test."""
    server = TemporalServer.started(tmp_path_factory.mktemp("temporal"))
    yield server
    server.kill()


@pytest.fixture
def own_temporal_server(tmp_path: Path) -> Iterator[TemporalServer]:
    """A real dev server for one test, to kill, freeze and restart."""
    server = TemporalServer.started(tmp_path / "temporal")
    yield server
    server.kill()


@pytest.fixture
async def temporal_client(temporal_server: TemporalServer) -> Client:
    """A client of the shared server, with the project's data converter."""
    return await temporal_server.client()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes; all of them are ended with the test."""
    folder = tmp_path / "processes"
    folder.mkdir()
    running = Processes(folder)
    yield running
    running.stop_all()
