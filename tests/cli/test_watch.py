"""`anabasis watch`: on pipes, as JSON lines, on a real terminal; Ctrl-C leaves the campaign running."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl

import pytest

from anabasis.cli import exits
from tests.cli.conftest import Cli, StartCli
from tests.support.processes import REPOSITORY
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.usefixtures("temporal_env")


@pytest.fixture
def running(cli_run: Cli, name: str) -> Iterator[str]:
    outcome = cli_run(
        "start", "--name", name, "--set", "recipe_options.round_seconds=1", "--set", "target.rounds=1000",
        "--set", "recipe_options.incident_at=1",
    )  # fmt: skip
    assert outcome.code == exits.OK, outcome
    yield name
    cli_run("cancel", name)


def _phase(cli_run: Cli, name: str) -> str:
    return json.loads(cli_run("status", name, "--json").out)["phase"]


def test_pipes_get_a_line_per_change_until_the_end(cli_run: Cli, name: str) -> None:
    cli_run("start", "--name", name, "--set", "recipe_options.round_seconds=1", "--set", "target.rounds=3",
            "--set", "recipe_options.incident_at=2")  # fmt: skip
    outcome = cli_run("watch", name, "--every", "0.1")
    assert outcome.code == exits.OK, outcome
    lines = outcome.out.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    assert "training" in lines[0]
    assert any("node 0-1 went silent → replaced; mended after 3.0 s" in line for line in lines)
    assert "completed" in lines[-1]
    assert "round 3/3" in lines[-1]
    assert "\x1b" not in outcome.out


def test_json_is_one_status_per_line(cli_run: Cli, name: str) -> None:
    outcome = cli_run(
        "start", "--name", name, "--set", "recipe_options.round_seconds=1", "--set", "target.rounds=2",
        "--watch", "--json",
    )  # fmt: skip
    assert outcome.code == exits.OK, outcome
    phases = [json.loads(line)["phase"] for line in outcome.out.splitlines()]
    assert phases[-1] == "completed"
    assert len(phases) == len(set(outcome.out.splitlines()))


def test_the_exit_code_says_how_it_ended(cli_run: Cli, name: str) -> None:
    cli_run("start", "--name", name, "--set", "recipe_options.fail_at=1")
    outcome = cli_run("watch", name, "--every", "0.1")
    assert outcome.code == exits.CAMPAIGN_ENDED_BADLY
    assert "shapes do not match" in outcome.out


@pytest.mark.parametrize("command", [("watch",), ("watch", "--json")])
def test_ctrl_c_leaves_the_campaign_running(
    cli_run: Cli, start_cli: StartCli, running: str, command: tuple[str, ...]
) -> None:
    process = start_cli(command[0], running, *command[1:])
    process.wait_for_text("training")
    process.signal(signal.SIGINT)
    assert process.wait(seconds=15) == exits.INTERRUPTED
    text = process.text()
    assert f"Campaign {running} goes on. Stop it with: anabasis cancel {running}" in text
    assert "Traceback" not in text
    assert _phase(cli_run, running) == "training"


def test_ctrl_c_while_waiting_for_the_result_leaves_it_running_too(
    cli_run: Cli, start_cli: StartCli, name: str
) -> None:
    process = start_cli("start", "--name", name, "--set", "recipe_options.round_seconds=60", "--wait")
    process.wait_for_text("has started")
    wait_until_sync(lambda: _phase(cli_run, name) == "training", seconds=15)
    process.signal(signal.SIGINT)
    assert process.wait(seconds=15) == exits.INTERRUPTED
    assert "goes on" in process.text()
    assert _phase(cli_run, name) == "training"
    assert cli_run("cancel", name, "--wait").code == exits.OK


@pytest.mark.slow
def test_watch_goes_through_a_restart_of_temporal(
    cli_run: Cli, start_cli: StartCli, own_temporal_server: TemporalServer, processes, monkeypatch
) -> None:
    for key, value in own_temporal_server.env.items():
        monkeypatch.setenv(key, value)
    processes.python("-m", "tests.support.standin_campaign").wait_for_text("serving")
    cli_run("start", "--name", "steady", "--set", "recipe_options.round_seconds=1", "--set", "target.rounds=4",
            "--set", "recipe_options.hold_at=2")  # fmt: skip
    process = start_cli("watch", "steady", "--every", "0.2")
    process.wait_for_text("round 2/4")
    own_temporal_server.kill()
    process.wait_for_text("no answer since", seconds=40)
    own_temporal_server.start()
    process.wait_for_text("Temporal answers again", seconds=60)
    assert cli_run("extend", "steady", "--rounds", 5).code == exits.OK
    assert process.wait(seconds=60) == exits.OK
    assert "round 5/5" in process.text()


class Terminal:
    """A program on a pseudo-terminal of a given size; collects what it writes."""

    def __init__(self, *arguments: str, rows: int, columns: int) -> None:
        self._controller, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "anabasis.cli.main", *arguments],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=REPOSITORY, start_new_session=True,
            env={**env, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(terminal)
        self.output = ""

    def read_until(self, text: str, *, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, f"{text!r} not in {self.output[-3000:]!r}"
            if select.select([self._controller], [], [], 0.2)[0]:
                try:
                    self.output += os.read(self._controller, 65_536).decode(errors="replace")
                except OSError:  # the program has gone
                    assert text in self.output, self.output[-3000:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._controller)


@pytest.mark.parametrize(("rows", "columns"), [(40, 110), (12, 50), (5, 20)])
def test_a_terminal_gets_a_live_picture_that_fits(cli_run: Cli, running: str, rows: int, columns: int) -> None:
    terminal = Terminal("watch", running, "--every", "0.2", rows=rows, columns=columns)
    try:
        terminal.read_until(running[: columns - 2])
        # Three pictures, each beginning at the top left corner.
        wait_until_sync(lambda: _more(terminal, pictures=3), seconds=30)
        last = terminal.output.split("\x1b[H")[-2]
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)
        lines = plain.replace("\r", "").split("\n")
        assert len(lines) <= rows
        assert max(len(line) for line in lines) <= columns
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("anabasis cancel")
        assert terminal.process.wait(15) == exits.INTERRUPTED
        assert "Traceback" not in terminal.output
        assert terminal.output.count("\x1b[?1049h") == terminal.output.count("\x1b[?1049l") == 1
    finally:
        terminal.close()


def _more(terminal: Terminal, *, pictures: int) -> bool:
    terminal.read_until("\x1b[H")
    if select.select([terminal._controller], [], [], 0.1)[0]:
        terminal.output += os.read(terminal._controller, 65_536).decode(errors="replace")
    return terminal.output.count("\x1b[H") > pictures
