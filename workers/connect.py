"""Connecting to Temporal, and leaving a process that did.

Where Temporal is (`target`): environment and profile first (`TEMPORAL_ADDRESS`, or an address in the profile of
`TEMPORAL_CONFIG_FILE`; the same ones that the `temporal` CLI reads), then the embedded stack of this state
directory, then localhost:7233.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import time
from datetime import timedelta
from typing import NoReturn

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from anabasis.errors import StackError, TemporalUnavailable
from workers.state_dir import StateDir

DEFAULT_TARGET = "127.0.0.1:7233"

CONNECT_TIMEOUT_SECONDS = 5.0
"""For one attempt. A local server answers in milliseconds, one behind TLS on another continent in about one second."""

WORKER_HEARTBEAT_SECONDS = 10
"""How often a process tells the server's worker registry that it lives (one call for all its workers)."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.25, 5.0
"""Pauses between attempts to connect, doubling: a server that is being started answers within a second, and a fleet
that waits for one that is being repaired must not overrun it."""

RUNTIME_REST_SECONDS = 0.25
"""A Python process that used Temporal may abort or hang when its interpreter ends while the runtime's threads
are still at work (temporalio/sdk-python issue 300); with this rest that was not seen in any of 70 runs."""

_log = logging.getLogger(__name__)


def target() -> str:
    """Temporal's address, host:port, without connecting. Raises `StackError` for an unreadable profile."""
    return _options()["target_host"]  # pyright: ignore[reportTypedDictNotRequiredAccess]


async def connect(*, identity: str | None = None, address: str | None = None, patience_seconds: float = 0.0) -> Client:
    """Connect with the project's data converter, log forwarding and the configured address, TLS and key.

    Args:
        identity: how this process appears in histories and in the worker registry; None = pid@host.
        address: connect there, without TLS, instead of to the configured address.
        patience_seconds: go on trying for so long; 0 = one attempt (commands), more for workers and agents, which
            may be started before the server.

    Raises:
        TemporalUnavailable: nothing answers there.
        StackError: the Temporal profile or the address cannot be used.
    """
    options = _options() if address is None else ClientConnectConfig(target_host=address)
    deadline = time.monotonic() + patience_seconds
    pause = FIRST_RETRY_SECONDS
    while True:
        try:
            return await _connect_once(options, identity=identity)
        except TemporalUnavailable as error:
            if time.monotonic() + pause > deadline:
                raise
            _log.info("%s; trying again in %.1f s", error, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)


async def _connect_once(options: ClientConnectConfig, *, identity: str | None) -> Client:
    where = options.get("target_host", DEFAULT_TARGET)
    try:
        return await Client.connect(
            **options,
            data_converter=pydantic_data_converter,
            identity=identity,
            runtime=runtime(),
            connect_timeout=timedelta(seconds=CONNECT_TIMEOUT_SECONDS),
        )
    except RuntimeError as error:  # what the SDK raises for every failure to connect
        raise TemporalUnavailable(
            f"Temporal does not answer at {where} ({_brief(str(error))}): "
            "start the local stack with `anabasis up`, or set TEMPORAL_ADDRESS"
        ) from error
    except ValueError as error:
        raise StackError(f"Temporal's address {where!r} is not host:port ({error}): set TEMPORAL_ADDRESS") from error


@functools.cache
def runtime() -> Runtime:
    """This process's one Temporal runtime: its core logs into `logging`, not to stdout."""
    # The ids are in the line's fields (see anabasis.logs); in the message they would only be noise.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False
    return Runtime(
        telemetry=TelemetryConfig(
            logging=LoggingConfig(
                filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                forwarding=LogForwardingConfig(logger=logging.getLogger("temporal.core"), append_target_to_name=False),
            ),
        ),
        worker_heartbeat_interval=timedelta(seconds=WORKER_HEARTBEAT_SECONDS),
    )


def exit_cleanly(code: int) -> NoReturn:
    """Leave the process for certain: flush, let the runtime come to rest, and skip the interpreter's end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader has gone, or it is closed
            pass
    if "temporalio.bridge.runtime" in sys.modules:
        time.sleep(RUNTIME_REST_SECONDS)
    logging.shutdown()
    os._exit(code)


def _options() -> ClientConnectConfig:
    try:
        options = ClientConfig.load_client_connect_config()
    except Exception as error:  # the SDK raises RuntimeError, OSError or ValueError, by the kind of mistake
        raise StackError(f"the Temporal profile cannot be used: {error}; check TEMPORAL_CONFIG_FILE") from error
    if options.get("target_host"):
        return options
    record = StateDir().read()
    if record is not None:
        return ClientConnectConfig(target_host=record.address, namespace=options.get("namespace") or record.namespace)
    options["target_host"] = DEFAULT_TARGET
    return options


def _brief(reason: str) -> str:
    for words in ("Connection refused", "dns error", "deadline", "timed out", "certificate"):
        if words.lower() in reason.lower():
            return words.lower()
    return reason.splitlines()[0][:120]
