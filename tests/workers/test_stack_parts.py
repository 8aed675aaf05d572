"""The small parts of the stack, each by itself: restart rule, log files, ports, state directory."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.errors import StackError
from tests.support.processes import Processes
from tests.support.wait import wait_until_sync
from workers import log_files, ports
from workers.child import RestartRule
from workers.embedded import StackOptions
from workers.state_dir import ProcessRecord, StackRecord, StateDir
from workers.temporal_server import free_port


def test_restarts_pause_longer_each_time_and_end() -> None:
    rule = RestartRule(first_seconds=1, most_seconds=3, crashes_allowed=4, window_seconds=100)
    assert [rule.pause_after_crash(now=now) for now in range(5)] == [1, 2, 3, 3, None]


def test_crashes_long_ago_are_forgotten() -> None:
    rule = RestartRule(crashes_allowed=1, window_seconds=100)
    assert [rule.pause_after_crash(now=now) for now in (0, 200, 400)] == [0.5, 0.5, 0.5]


def test_accidents_of_sound_children_never_end_the_stack() -> None:
    rule = RestartRule(crashes_allowed=1, steady_seconds=5)
    assert [rule.pause_after_crash(now=6.0 * count, lived=5.5) for count in range(20)] == [0.5] * 20
    assert [rule.pause_after_crash(now=200.0 + count, lived=0.5) for count in range(2)] == [0.5, None]


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_restart_pauses_are_bounded(gaps: list[float]) -> None:
    rule, now = RestartRule(), 0.0
    for gap in gaps:
        now += gap
        pause = rule.pause_after_crash(now=now)
        assert pause is None or 0 < pause <= rule.most_seconds


def test_the_ui_is_beside_temporal_unless_told_otherwise() -> None:
    assert StackOptions(port=7300).wanted_ui_port == 8300
    assert StackOptions(port=7300, ui_port=9000).wanted_ui_port == 9000
    assert StackOptions(port=0).wanted_ui_port == 0
    assert StackOptions(port=65_000).wanted_ui_port == 0


def test_a_taken_port_is_refused_and_zero_finds_one() -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        taken = mine.getsockname()[1]
        assert not ports.is_free(taken)
        assert f"process {os.getpid()} " in ports.holder(taken)
        with pytest.raises(StackError, match=rf"port {taken} for tests is taken by process {os.getpid()}.*--port \d+"):
            ports.choose(taken, option="--port", purpose="tests")
    assert ports.is_free(ports.choose(0, option="--port", purpose="tests"))


def test_a_large_log_is_set_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab") as writer:
        writer.write(b"a" * 100 + b"\n")
        writer.flush()
        assert not log_files.rotate_if_large(log, max_bytes=1_000)
        assert log_files.rotate_if_large(log, max_bytes=10)
        writer.write(b"b\n")
        writer.flush()
    assert log.read_bytes() == b"b\n"
    assert (tmp_path / "x.log.1").read_bytes() == b"a" * 100 + b"\n"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert log_files.tail(tmp_path / "none", source="x", lines=5) == []
    assert not log_files.rotate_if_large(tmp_path / "none")
    assert log_files.last_message(tmp_path / "none") == "it wrote nothing"


def test_lines_without_a_time_stay_behind_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text('{"timestamp": "2026-01-01T00:00:00.5Z", "event": "e", "level": "error", "reason": "r"}\nplain\n')
    first, second = log_files.tail(log, source="x", lines=5)
    assert first.at == second.at == "2026-01-01T00:00:00.5Z"
    assert first.message == "error    e reason=r"
    assert second.message == "plain"


@given(st.text(max_size=200) | st.dictionaries(st.text(max_size=9), st.integers()).map(json.dumps))
def test_any_line_can_be_shown(raw: str) -> None:
    assert isinstance(log_files.parse(raw, source="x").message, str)


def test_following_sees_new_lines_and_an_emptied_file(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("old\n")
    lines = log_files.follow({"x": log})
    with log.open("a") as writer:
        writer.write("new\n")
    assert next(lines).text == "new"
    log.write_text("again\n")
    assert next(lines).text == "again"


def test_a_recorded_process_is_found_by_pid_and_start_time_only() -> None:
    mine = ProcessRecord.of("me", os.getpid())
    assert mine.find() is not None
    assert mine.model_copy(update={"started_at": mine.started_at - 60}).find() is None


def test_a_dead_process_is_not_found_even_before_anyone_collects_it(processes: Processes) -> None:
    sleeper = processes.start(["sleep", "600"])
    record = ProcessRecord.of("sleeper", sleeper.pid)
    psutil.Process(sleeper.pid).kill()
    wait_until_sync(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE, seconds=20)
    assert record.find() is None


def test_the_lock_is_held_by_one_and_released_by_its_end() -> None:
    state = StateDir()
    state.create()
    assert not state.is_locked()
    with state.lock() as mine:
        assert mine
        assert state.is_locked()
    assert not state.is_locked()


@pytest.mark.parametrize("home", ["/proc/anabasis", "/dev/null/anabasis"])
def test_a_directory_that_cannot_be_used_is_named_with_the_mend(home: str) -> None:
    with pytest.raises(StackError, match=rf"{home} cannot be used \(.*--home"):
        StateDir(Path(home)).create()


def test_an_unreadable_record_counts_as_none() -> None:
    state = StateDir()
    state.create()
    (state.home / "stack.json").write_text('{"address": ')
    assert state.read() is None


def test_a_record_survives_writing_and_reading() -> None:
    state = StateDir()
    state.create()
    record = StackRecord(
        address=f"127.0.0.1:{free_port()}",
        store_url="file:///s",
        home=str(state.home),
        supervisor=ProcessRecord.of("supervisor", os.getpid()),
    )
    state.write(record)
    assert state.read() == record
    state.forget()
    assert state.read() is None
