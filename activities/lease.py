"""Activities of a node's own queue: `verify_node` proves that it is there, `train_lease` lets it train for a while."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.agent_config import AgentConfig
from activities.trainer_keeper import LOOK_SECONDS, TrainerKeeper, Verdict
from anabasis.campaign.messages import LeaseRequest, LeaseResult, NodeIdentity, NodeReport

DEVICES_SECONDS = 10.0
"""For `nvidia-smi`: it takes seconds when the driver has to be loaded first."""

RETRY_AFTER_DRAIN_SECONDS = 1.0
"""Before the server may offer a drained lease again. Whoever owns the node decides whether anyone is to take it."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One call of `train_lease`; the newest one has the say."""

    superseded: bool = False


class NodeActivities:
    """Of one node. Leases attach to the trainer that runs, or start it.

    Failures of `train_lease` are `ApplicationError`s whose first detail is
    `{"last_progress_at", "version", "steps", "trainer_starts"}`; their types are those in `LeaseResult`, and whatever
    type the trainer gave for its failure. All but `NodeDrained` are non-retryable.

    Attributes:
        leases: attempts in progress. idle_since: monotonic seconds at which the last one ended.
    """

    def __init__(self, config: AgentConfig, keeper: TrainerKeeper) -> None:
        self.config = config
        self.keeper = keeper
        self.leases = 0
        self.idle_since = time.monotonic()
        self._newest: _Attempt | None = None

    @activity.defn
    async def verify_node(self, node: NodeIdentity) -> NodeReport:
        """Say what this machine is. Raises `Fenced` when another node was meant."""
        self._check(node)
        return NodeReport(
            hostname=socket.gethostname(),
            agent_pid=os.getpid(),
            cpu_count=_cpu_count(),
            memory_bytes=psutil.virtual_memory().total,
            python=platform.python_version(),
            platform=platform.platform(),
            clock=time.time(),
            devices=await _devices(),
        )

    @activity.defn
    async def train_lease(self, request: LeaseRequest) -> LeaseResult:
        """See to it that the trainer trains, until the lease is over, the campaign is finished, or told to leave."""
        self._check(request.node)
        attempt = self._take_over()
        self.leases += 1
        try:
            self.keeper.stall_seconds = request.stall_seconds
            await self.keeper.ensure_running(store_url=request.store_url)
            return await self._attend(request, attempt)
        except asyncio.CancelledError:
            why = _why_cancelled()
            if not why & {"cancel_requested", "worker_shutdown"}:
                # Timed out, paused, unknown to a server that was restored, or replaced by a newer attempt: this
                # attempt is over, the training is not. Whoever leases the node next finds it at work.
                _log.info("lease_lost", why=sorted(why))
                raise
            await self._leave(for_good="worker_shutdown" in why)
            return self._result("drained") if self.keeper.verdict is None else self._tell(self.keeper.verdict)
        finally:
            self.leases -= 1
            self.idle_since = time.monotonic()

    def _check(self, node: NodeIdentity) -> None:
        if node != self.config.node:
            raise ApplicationError(
                f"this is node {self.config.node.node_id} ({self.config.node.nonce}) of {self.config.node.campaign}, "
                f"not {node.node_id} ({node.nonce}) of {node.campaign}",
                type="Fenced",
                non_retryable=True,
            )

    def _take_over(self) -> _Attempt:
        if self._newest is not None:
            self._newest.superseded = True
        self._newest = _Attempt()
        return self._newest

    async def _attend(self, request: LeaseRequest, attempt: _Attempt) -> LeaseResult:
        """Beat when the trainer lives, and only then; tell its end."""
        keeper = self.keeper
        deadline = time.monotonic() + request.lease_seconds
        heard = -1
        while True:
            if attempt.superseded:
                raise ApplicationError("a newer attempt has taken over", type="Superseded", non_retryable=True)
            if keeper.verdict is not None:
                return self._tell(keeper.verdict)
            if keeper.signs_of_life != heard or keeper.starting or keeper.stopping:
                heard = keeper.signs_of_life
                self._beat()
            if time.monotonic() >= deadline:
                return self._result("lease_over")
            await asyncio.sleep(min(LOOK_SECONDS, request.stall_seconds / 5))

    def _beat(self) -> None:
        progress = self.keeper.progress
        activity.heartbeat(
            {"v": progress.version, "s": progress.steps, "p": progress.phase, "at": round(self.keeper.last_sign_at, 3)}
        )

    async def _leave(self, *, for_good: bool) -> None:
        """End the trainer politely. The server hears from us meanwhile, for as long as that may take and no longer."""
        stopping = asyncio.create_task(self.keeper.drain() if for_good else self.keeper.stop())
        while not stopping.done():
            with suppress(asyncio.CancelledError):  # told twice is told once
                await asyncio.wait([stopping], timeout=LOOK_SECONDS)
            self._beat()
        await stopping

    def _tell(self, verdict: Verdict) -> LeaseResult:
        if verdict.kind == "finished":
            return self._result("finished")
        progress = self.keeper.progress
        details: dict[str, Any] = {
            "last_progress_at": self.keeper.last_sign_at,
            "version": progress.version,
            "steps": progress.steps,
            "trainer_starts": self.keeper.starts,
        }
        if verdict.kind == "drained":
            raise ApplicationError(
                verdict.text,
                details,
                type="NodeDrained",
                next_retry_delay=timedelta(seconds=RETRY_AFTER_DRAIN_SECONDS),
            )
        raise ApplicationError(verdict.text, details, type=verdict.failure, non_retryable=True)

    def _result(self, reason: str) -> LeaseResult:
        progress = self.keeper.progress
        return LeaseResult.model_validate(
            {
                "reason": reason,
                "version": progress.version,
                "steps": progress.steps,
                "trainer_pid": self.keeper.pid,
                "trainer_starts": self.keeper.starts,
            }
        )


def _why_cancelled() -> set[str]:
    details = activity.cancellation_details()
    return set() if details is None else {name for name, value in vars(details).items() if value}


def _cpu_count() -> int:
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1


async def _devices() -> list[str]:
    """Names of the NVIDIA devices, without importing torch; none when there is no driver."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nvidia-smi", "--query-gpu=name", "--format=csv,noheader",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return []
    try:
        output, _ = await asyncio.wait_for(process.communicate(), DEVICES_SECONDS)
    except TimeoutError:
        process.kill()
        return []
    return [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
