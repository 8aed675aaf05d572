"""Simulated nodes: hundreds in one process of this machine, timed by a model, for rehearsals and measurements.

Campaign, node workflows, aggregator and mailbox are the real ones; only the machines and their arithmetic are not.
What a cloud would remember is in `<home>/simulated/<campaign>/cloud.db`; one simulator process per campaign
(`workers.simulator`) plays the machines, and is started whenever it is needed and does not run.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from pydantic import Field

from activities.providers.base import OPTIONS_PATH, Offer, ProviderOptions, TemporalAddress
from activities.providers.cloud_table import CloudTable, key_of
from activities.providers.node_folder import try_lock
from activities.providers.processes import ProcessMark, wait_gone
from anabasis.campaign.messages import NodeDescription, NodeHandle, NodeIdentity, NodeRequest
from anabasis.errors import CapacityError, Fenced, ProviderError

SIMULATOR_MODULE = "workers.simulator"

RELEASE_SECONDS = 10.0
"""Beyond the grace, for a simulator that is busy with hundreds of others to end one node."""

_POLL_SECONDS = 0.05

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Simulators that this process started, to collect them when they end."""

_log = structlog.get_logger(__name__)


class SimulatedOptions(ProviderOptions):
    """`fleet.provider_options` of the simulated provider. The same seed gives every node the same speed and fate."""

    seed: int = Field(default=0, ge=0, description="of speeds, boot times and failures")
    steps_per_second: float = Field(default=20.0, gt=0, description="inner steps of the median node")
    spread: float = Field(default=0.2, ge=0, le=2, description="of speeds: standard deviation of their logarithm")
    boot_seconds: float = Field(default=1.0, ge=0, description="from request to serving, in the mean")
    mean_seconds_to_failure: float | None = Field(
        default=None, gt=0, description="of one node, exponentially distributed; null = nodes do not fail"
    )
    freeze_share: float = Field(default=0.0, ge=0, le=1, description="of the failures: it stops, and does not vanish")
    preemption_share: float = Field(default=0.0, ge=0, le=1, description="of the failures: announced beforehand")
    preemption_notice_seconds: float = Field(default=5.0, ge=0, description="from the announcement to the end")
    refusal_share: float = Field(default=0.0, ge=0, lt=1, description="of the requests: no capacity just now")
    max_nodes: int | None = Field(default=None, ge=1, description="of the campaign, at a time")
    price_per_hour: float | None = Field(default=None, ge=0, description="of one node")


class SimulatedProvider:
    """Nodes of a simulated cloud, kept below `<home>/simulated`."""

    name = "simulated"

    def __init__(self, options: SimulatedOptions | None = None, *, home: Path) -> None:
        self.options = options or SimulatedOptions()
        self.home = home

    async def offers(self) -> list[Offer]:
        return [
            Offer(
                provider=self.name,
                region="nowhere",
                machine_type="simulated",
                price_per_hour=self.options.price_per_hour,
                spot=self.options.mean_seconds_to_failure is not None,
                available=self.options.max_nodes,
            )
        ]

    async def request(self, request: NodeRequest, *, temporal: TemporalAddress) -> NodeHandle:
        with _cloud_errors():
            return await asyncio.to_thread(self._request, request, temporal)

    async def describe(self, node: NodeIdentity) -> NodeDescription:
        return await asyncio.to_thread(self._describe, node)

    async def list(self, campaign: str) -> list[NodeIdentity]:
        with _cloud_errors():
            return await asyncio.to_thread(self._list, campaign)

    async def release(self, node: NodeIdentity, *, grace_seconds: float) -> NodeDescription:
        with _cloud_errors():
            if not await asyncio.to_thread(self._begin_release, node):
                return await self.describe(node)
            deadline = time.monotonic() + grace_seconds + RELEASE_SECONDS
            while True:
                found = await self.describe(node)
                if found.state != "stopping" or time.monotonic() > deadline:
                    return found
                await asyncio.sleep(_POLL_SECONDS)

    # --- in threads -----------------------------------------------------------------------------------------

    def _request(self, request: NodeRequest, temporal: TemporalAddress) -> NodeHandle:
        folder = simulation_dir(self.home, request.node.campaign)
        table = CloudTable(folder)
        table.create()
        known = table.get(request.node)
        if known is None:
            self._check_capacity(table, request.node)
            table.write_meta({"temporal_target": temporal.target, "temporal_namespace": temporal.namespace})
            state = table.register(request, options=self.options.model_dump())
        else:
            state = known[0]
            if known == ("absent", "released") or state == "stopping":
                raise Fenced(f"node {request.node.node_id} ({request.node.nonce}) was released")
        if state != "absent":
            ensure_simulator(folder)
        return NodeHandle(
            provider=self.name,
            reference=f"simulated/{request.node.campaign}/{key_of(request.node)}",
            price_per_hour=self.options.price_per_hour,
        )

    def _check_capacity(self, table: CloudTable, node: NodeIdentity) -> None:
        limit = self.options.max_nodes
        if limit is not None and table.count_live() >= limit:
            raise CapacityError(f"{limit} simulated nodes are all there are: raise {OPTIONS_PATH}.max_nodes")
        if self.options.refusal_share > 0:
            before = table.refuse_again(node)  # counted whether or not: every question has an answer of its own
            draw = random.Random(f"refusal {self.options.seed} {node.slot} {node.attempt} {before}").random()
            if draw < self.options.refusal_share:
                raise CapacityError("the simulated cloud has no machine just now: try again")

    def _describe(self, node: NodeIdentity) -> NodeDescription:
        folder = simulation_dir(self.home, node.campaign)
        if not folder.exists():
            return NodeDescription(state="absent", detail="never asked for")
        try:
            found = CloudTable(folder).get(node)
            if found is None:
                return NodeDescription(state="absent", detail="never asked for")
            if found[0] != "absent":
                ensure_simulator(folder)
        except (sqlite3.Error, OSError) as error:
            return NodeDescription(state="unknown", detail=f"the simulated cloud does not answer: {error}")
        return NodeDescription.model_validate({"state": found[0], "detail": found[1]})

    def _list(self, campaign: str) -> list[NodeIdentity]:
        folder = simulation_dir(self.home, campaign)
        return [row.request.node for row in CloudTable(folder).live()] if folder.exists() else []

    def _begin_release(self, node: NodeIdentity) -> bool:
        """Whether there is something to wait for."""
        table = CloudTable(simulation_dir(self.home, node.campaign))
        table.create()
        if table.get(node) is None:
            table.bury(node)
            return False
        return table.move(key_of(node), "stopping", only_from=("starting", "running", "stopping"))


def simulation_dir(home: Path, campaign: str) -> Path:
    return home / "simulated" / campaign


def ensure_simulator(folder: Path) -> None:
    """Start this campaign's simulator unless it lives or is about to. Raises OSError."""
    _reap()
    with (folder / "spawn.lock").open("a") as guard:
        if is_locked(folder / "simulator.lock") or not try_lock(guard):
            return
        mark = ProcessMark.read(folder / "simulator.pid")
        if mark is not None and mark.find() is not None:
            return  # it boots
        with (folder / "simulator.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", SIMULATOR_MODULE, "--folder", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        _children[child.pid] = child
        started = ProcessMark.of(child.pid)
        if started is not None:
            started.write(folder / "simulator.pid")
        _log.info("simulator_started", campaign=folder.name, pid=child.pid)


def is_locked(path: Path) -> bool:
    """Whether a live process holds this lock."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def stop_all(home: Path, *, grace_seconds: float = 5.0) -> int:
    """End all simulators of this machine that were started from `home`; returns how many lived.

    Their clouds remember: whoever asks for a node starts them again. Call it where no event loop runs.
    """
    found = [ProcessMark.read(path) for path in (home / "simulated").glob("*/simulator.pid")]
    living = [process for mark in found if mark is not None and (process := mark.find()) is not None]
    for process in living:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    for process in asyncio.run(wait_gone(living, seconds=grace_seconds)):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    _reap()
    return len(living)


def _reap() -> None:
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


@contextmanager
def _cloud_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise ProviderError(f"the simulated cloud does not answer: {error}") from error
