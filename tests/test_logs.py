"""One pipeline for every logger, fields from the context, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.worker import Worker

from anabasis import logs
from tests.support.logging_workflow import LogsOneLine
from tests.support.processes import Processes

AWS_KEY_ID = "AKIA" + "Z" * 16


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, structlog_config = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**structlog_config)


def _events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def _log_to_json(level: str = "INFO") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(True, level, stream=stream)
    return stream


def test_structlog_and_logging_come_out_alike() -> None:
    stream = _log_to_json()
    structlog.get_logger("ours").info("round_closed", round=3)
    logging.getLogger("theirs").warning("took %d s", 4, extra={"seconds": 4})
    ours, theirs = _events(stream)
    assert (ours["event"], ours["round"], ours["level"], ours["logger"]) == ("round_closed", 3, "info", "ours")
    assert (theirs["event"], theirs["seconds"], theirs["level"]) == ("took 4 s", 4, "warning")
    assert ours["timestamp"].endswith("Z")
    assert theirs["timestamp"].endswith("Z")


def test_context_fields_are_on_every_line() -> None:
    stream = _log_to_json()
    with structlog.contextvars.bound_contextvars(campaign="c", node="0-1", round=7):
        structlog.get_logger().info("a")
        logging.getLogger("library").info("b")
    structlog.get_logger().info("c")
    bound = [(event.get("campaign"), event.get("node"), event.get("round")) for event in _events(stream)]
    assert bound == [("c", "0-1", 7), ("c", "0-1", 7), (None, None, None)]


def test_configuring_again_replaces_and_does_not_double() -> None:
    first = _log_to_json()
    second = _log_to_json()
    structlog.get_logger().info("once")
    assert first.getvalue() == ""
    assert len(_events(second)) == 1


def test_level_comes_from_the_environment_and_noisy_libraries_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABASIS_LOG_LEVEL", "debug")
    stream = io.StringIO()
    logs.configure(True, stream=stream)
    structlog.get_logger().debug("seen")
    logging.getLogger("botocore.auth").info("not seen")
    assert [event["event"] for event in _events(stream)] == ["seen"]


def test_console_format_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABASIS_LOG_FORMAT", "console")
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger().info("round_closed", round=3)
    assert "round_closed" in stream.getvalue()
    assert "round=3" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"key {AWS_KEY_ID} refused", AWS_KEY_ID),
        ("PUT http://store/x?X-Amz-Signature=abcdef0123&y=1", "abcdef0123"),
        ("cannot open s3://user:hunter22@host/bucket", "hunter22"),
        ("Authorization: Bearer eyJhbGciOi.abc-def", "eyJhbGciOi.abc-def"),
        ("connect with password=hunter22 failed", "hunter22"),
    ],
)
def test_secret_looking_text_is_taken_out(text: str, secret: str) -> None:
    assert secret not in logs.redact_text(text)
    assert logs.REDACTED in logs.redact_text(text)


def test_secret_keys_are_taken_out_at_any_depth_and_token_counts_stay() -> None:
    stream = _log_to_json()
    structlog.get_logger().info(
        "x", password="p", session_token="t", options={"aws_secret_access_key": "s", "region": "eu"}, tokens=5
    )
    (event,) = _events(stream)
    assert event["password"] == event["session_token"] == logs.REDACTED
    assert event["options"] == {"aws_secret_access_key": logs.REDACTED, "region": "eu"}
    assert event["tokens"] == 5


def test_values_of_secret_variables_are_taken_out_of_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    stream = _log_to_json()
    try:
        raise ValueError("bad key wJalrXUtnFEMI/K7MDENG")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "wJalr" not in stream.getvalue()
    assert "ValueError" in _events(stream)[0]["exception"]


def test_absurdly_long_fields_are_cut() -> None:
    stream = _log_to_json()
    structlog.get_logger().info("x" * 1_000_000)
    assert len(stream.getvalue()) < 2 * logs.MAX_FIELD_CHARACTERS


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50) | st.integers() | st.lists(st.text(max_size=9))))
def test_redaction_takes_any_event(event: dict[str, Any]) -> None:
    assert logs.redact(None, "info", event).keys() == event.keys()


async def test_workflow_logger_lines_carry_their_fields_and_the_workflow(temporal_client: Client) -> None:
    stream = _log_to_json()
    async with Worker(temporal_client, task_queue="logs", workflows=[LogsOneLine], max_cached_workflows=0):
        await temporal_client.execute_workflow(LogsOneLine.run, id="logs-one-line", task_queue="logs")
    lines = [event for event in _events(stream) if event["event"] == "from the workflow"]
    assert len(lines) == 1
    assert (lines[0]["campaign"], lines[0]["workflow_id"]) == ("c", "logs-one-line")


def test_stdout_stays_clean_when_the_server_is_gone(own_temporal_server, processes: Processes) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from anabasis import logs\n"
        "from workers.connect import connect, exit_cleanly\n"
        "from temporalio import activity\n"
        "from temporalio.worker import Worker\n"
        "@activity.defn\n"
        "async def nothing() -> None: ...\n"
        "async def main():\n"
        "    logs.configure(True, stream=open(sys.argv[1], 'w', buffering=1))\n"
        "    async with Worker(await connect(), task_queue='q', activities=[nothing]):\n"
        "        os.kill(int(sys.argv[2]), signal.SIGKILL)\n"
        "        while 'temporal.core' not in open(sys.argv[1]).read(): await asyncio.sleep(0.1)\n"
        "        exit_cleanly(0)\n"
        "asyncio.run(main())\n"
    )
    log = processes.folder / "core.log"
    process = processes.start(
        [sys.executable, "-c", program, str(log), str(own_temporal_server.pid)],
        name="core",
        env=own_temporal_server.env,
    )
    assert process.wait(seconds=60) == 0
    assert process.text() == ""
    assert all(json.loads(line)["level"] for line in log.read_text().splitlines())
