"""Where Temporal is, how it is reached, and how a process that reached it leaves."""

from __future__ import annotations

import asyncio
import sys

import pytest

from anabasis.errors import StackError, TemporalUnavailable
from tests.support.processes import Processes
from tests.support.temporal import TemporalServer
from workers.connect import connect, target
from workers.state_dir import ProcessRecord, StackRecord, StateDir
from workers.temporal_server import free_port


def _write_record(address: str) -> None:
    state = StateDir()
    state.create()
    record = ProcessRecord(name="supervisor", pid=1, started_at=0.0)
    state.write(StackRecord(address=address, store_url="file:///s", home=str(state.home), supervisor=record))


def test_target_falls_back_to_the_usual_local_address() -> None:
    assert target() == "127.0.0.1:7233"


def test_target_is_the_stack_of_this_state_directory() -> None:
    _write_record("127.0.0.1:4321")
    assert target() == "127.0.0.1:4321"


def test_environment_wins_over_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    _write_record("127.0.0.1:4321")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    assert target() == "temporal.example:7233"


def test_profile_wins_over_the_stack(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    _write_record("127.0.0.1:4321")
    config = tmp_path / "temporal.toml"
    config.write_text('[profile.lab]\naddress = "lab.example:7233"\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(config))
    monkeypatch.setenv("TEMPORAL_PROFILE", "lab")
    assert target() == "lab.example:7233"


def test_unknown_profile_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "no-such-profile")
    with pytest.raises(StackError, match="no-such-profile"):
        target()


async def test_nobody_listening_names_the_address_and_the_mend() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(TemporalUnavailable, match=rf"{address} \(connection refused\).*anabasis up"):
        await connect(address=address)


async def test_an_address_that_is_none_is_the_users_error() -> None:
    with pytest.raises(StackError, match="not host:port"):
        await connect(address="not an address")


async def test_a_patient_connect_outlasts_a_late_server(own_temporal_server: TemporalServer) -> None:
    own_temporal_server.kill()
    connecting = asyncio.create_task(connect(address=own_temporal_server.address, patience_seconds=60))
    await asyncio.to_thread(own_temporal_server.start)
    client = await connecting
    assert (await client.count_workflows()).count == 0


async def test_messages_are_pydantic(temporal_client) -> None:
    converter = temporal_client.data_converter.payload_converter_class.__module__
    assert converter.startswith("temporalio.contrib.pydantic")


def test_short_lived_clients_exit_with_their_code(temporal_server: TemporalServer, processes: Processes) -> None:
    program = (
        "import asyncio\n"
        "from workers.connect import connect, exit_cleanly\n"
        "asyncio.run(connect())\n"
        "print('done')\n"
        "exit_cleanly(7)\n"
    )
    started = [
        processes.start([sys.executable, "-c", program], name="client", env=temporal_server.env) for _ in range(4)
    ]
    assert [process.wait() for process in started] == [7] * 4
    assert [process.text() for process in started] == ["done\n"] * 4
