"""A Temporal of its own for the commands' tests, with a worker that serves the stand-in campaign.

The campaigns' queue has one name everywhere: on the shared server, the stand-in would take other tests' campaigns.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from anabasis.cli import main as cli
from tests.support.processes import Process, Processes
from tests.support.temporal import TemporalServer

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def standin_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A dev server whose campaigns are served by a real worker process."""
    folder = tmp_path_factory.mktemp("standin")
    server = TemporalServer.started(folder / "temporal")
    processes = Processes(folder)
    worker = processes.python(
        "-m", "tests.support.standin_campaign", env={**server.env, "TEMPORAL_CONFIG_FILE": os.devnull}
    )
    worker.wait_for_text("serving")
    yield server
    processes.stop_all()
    server.kill()


@pytest.fixture
def temporal_env(standin_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> TemporalServer:
    """Commands of this test talk to the stand-in's server."""
    for name, value in standin_server.env.items():
        monkeypatch.setenv(name, value)
    return standin_server


@pytest.fixture
def name() -> str:
    """A campaign name that no other test uses."""
    return f"cli-{os.getpid()}-{next(_numbers)}"


class Outcome:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"Outcome({self.code}, out={self.out!r}, err={self.err!r})"


Cli = Callable[..., Outcome]
StartCli = Callable[..., Process]


@pytest.fixture
def cli_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run one command in this process, through the same error boundary as the program."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    yield run
    # The command's log handler holds this test's captured stderr.
    root = logging.getLogger()
    for handler in [one for one in root.handlers if one.get_name() == "anabasis"]:
        root.removeHandler(handler)


@pytest.fixture
def start_cli(processes: Processes) -> StartCli:
    """Start a command as a process of its own; its log is stdout and stderr together."""

    def start(*arguments: object, env: dict[str, str] | None = None) -> Process:
        return processes.start(
            [sys.executable, "-m", "anabasis.cli.main", *(str(argument) for argument in arguments)],
            name=str(arguments[0]),
            env={"PYTHONUNBUFFERED": "1", "COLUMNS": "120", **(env or {})},
        )

    return start
