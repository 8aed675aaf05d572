"""One simulated machine from boot to its end: the same activities, on the same queue, as a real node agent."""

from __future__ import annotations

import asyncio
import platform
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.providers.cloud_table import CloudNode
from anabasis.campaign.messages import LeaseRequest, LeaseResult, NodeIdentity, NodeReport
from workers.simulation.model import Fate
from workers.simulation.queue import Beat, Queue
from workers.simulation.trainer import SimulatedTrainer
from workers.simulation.world import World

BEATS_PER_TIMEOUT = 5
"""As the real agent."""

LOOK_SECONDS = 0.25
"""A lease's looks at its trainer between heartbeats."""

GOODBYE_SECONDS = 2.0
"""For leases to hand themselves back when the machine is released or preempted."""

_log = structlog.get_logger(__name__)


class SimulatedNode:
    """Run `live` as a task; it returns when the machine is gone. `order` does something to it from outside.

    Args:
        report: called with (state, detail) when the cloud is to know something.
    """

    def __init__(
        self,
        row: CloudNode,
        *,
        client: Client,
        world: World,
        fate: Fate,
        notice_seconds: float,
        report: Callable[[str, str], None],
        on_contact: Callable[[], None],
    ) -> None:
        self.node: NodeIdentity = row.request.node
        self._fate = fate
        self._notice_seconds = notice_seconds
        self._report = report
        self._booted = row.state != "starting"
        self._started_at = row.requested_at
        self._trainer = SimulatedTrainer(world, node=self.node, steps_per_second=fate.steps_per_second)
        self._training: asyncio.Task[None] | None = None
        self._attempt = 0
        self._frozen = False
        self._leaving: ApplicationError | None = None
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        if row.detail == "frozen":
            self.order("freeze")
        self._queue = Queue(
            client,
            name=self.node.task_queue,
            identity=f"node {self.node.campaign}/{row.key} (simulated)",
            activities={"verify_node": (NodeIdentity, self._verify), "train_lease": (LeaseRequest, self._lease)},
            beats_per_timeout=BEATS_PER_TIMEOUT,
            on_contact=on_contact,
        )

    def order(self, what: str) -> None:
        """`release`, `lose`, `freeze` or `preempt`."""
        self._orders.put_nowait(what)

    async def live(self) -> None:
        """Boot, serve, and end in the way that the model or an order has for it."""
        serving: asyncio.Task[None] | None = None
        try:
            order = None if self._booted else await self._next_order(self._seconds_until(self._fate.boot_seconds))
            if order is not None:
                self._report("absent", "released" if order == "release" else "lost while booting")
                return
            if not self._booted:
                self._report("running", "")
            serving = asyncio.create_task(self._queue.serve())
            await self._until_the_end(serving)
        finally:
            for task in (serving, self._training):
                if task is not None:
                    task.cancel()

    async def _until_the_end(self, serving: asyncio.Task[None]) -> None:
        lifetime = self._fate.lifetime_seconds
        end = await self._next_order(
            None if lifetime is None else self._seconds_until(self._fate.boot_seconds + lifetime)
        )
        if end is None:
            end = {"lost": "lose", "frozen": "freeze", "preempted": "preempt"}[self._fate.end]
        while end == "freeze":
            self._frozen = True
            self._queue.freeze()
            if self._training is not None:
                self._training.cancel()
            self._report("running", "frozen")
            end = await self._next_order(None)
        if end == "preempt":
            await self._leave(ApplicationError("the machine is taken back", type="Preempted", non_retryable=True))
            await self._next_order(self._notice_seconds)
            self._report("absent", "preempted")
        elif end == "release":
            if not self._frozen:
                await self._leave(ApplicationError("the node was released", type="NodeDrained"))
            self._report("absent", "released")
        else:
            serving.cancel()  # before anyone hears of it
            self._report("absent", "lost")

    async def _next_order(self, seconds: float | None) -> str | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._orders.get()
        except TimeoutError:
            return None

    def _seconds_until(self, age_seconds: float) -> float:
        """By the wall clock, since it must also hold for the next life of the simulator."""
        return max(0.0, self._started_at + age_seconds - time.time())

    async def _leave(self, why: ApplicationError) -> None:
        self._leaving = why
        await self._queue.settle(seconds=GOODBYE_SECONDS)

    # --- activities -----------------------------------------------------------------------------------------

    async def _verify(self, node: NodeIdentity, _: Beat) -> NodeReport:
        self._check(node)
        return NodeReport(
            hostname=f"simulated-{self.node.node_id}",
            agent_pid=0,
            cpu_count=1,
            memory_bytes=0,
            python=platform.python_version(),
            platform=f"simulated on {socket.gethostname()}",
            clock=time.time(),
        )

    async def _lease(self, request: LeaseRequest, beat: Beat) -> LeaseResult | None:
        self._check(request.node)
        self._attempt += 1
        return await self._attend(request, beat, attempt=self._attempt)

    async def _attend(self, request: LeaseRequest, beat: Beat, *, attempt: int) -> LeaseResult | None:
        if self._training is None or (self._training.done() and self._trainer.phase not in ("finished", "fenced")):
            self._training = asyncio.create_task(self._trainer.train())
        over_at = time.monotonic() + request.lease_seconds
        beat_at, beaten = 0.0, -1
        while True:
            now = time.monotonic()
            if self._frozen or attempt != self._attempt:
                return None
            if self._leaving is not None:
                raise self._leaving
            if self._trainer.phase == "fenced":
                raise ApplicationError("someone newer holds the slot", type="Fenced", non_retryable=True)
            if self._trainer.phase == "finished":
                return self._result("finished")
            if self._training.done() and not self._training.cancelled() and (defect := self._training.exception()):
                raise ApplicationError(repr(defect), type="TrainerCrashed", non_retryable=True)
            if now >= over_at:
                return self._result("lease_over")
            if now >= beat_at and self._trainer.ticks != beaten:
                beat_at, beaten = now + beat.every_seconds, self._trainer.ticks
                answer = await beat.send(self._details())
                if answer == "lost":
                    return None
                if answer == "cancelled":
                    return await self._stop_training()
                continue
            await self._rest(min(over_at, max(beat_at, now + LOOK_SECONDS)) - now)

    async def _rest(self, seconds: float) -> None:
        """Until the trainer ends, or it is time to look again."""
        if self._training is not None and not self._training.done():
            await asyncio.wait([self._training], timeout=min(seconds, LOOK_SECONDS * 4))
        else:
            await asyncio.sleep(min(seconds, LOOK_SECONDS))

    async def _stop_training(self) -> LeaseResult:
        if self._training is not None:
            self._training.cancel()
            with suppress(asyncio.CancelledError):
                await self._training
        return self._result("drained")

    def _details(self) -> dict[str, Any]:
        trainer = self._trainer
        return {"v": trainer.version, "s": trainer.steps, "p": trainer.phase, "at": round(time.time(), 3)}

    def _result(self, reason: str) -> LeaseResult:
        return LeaseResult.model_validate(
            {"reason": reason, "version": self._trainer.version, "steps": self._trainer.steps, "trainer_starts": 1}
        )

    def _check(self, node: NodeIdentity) -> None:
        if node != self.node:
            raise ApplicationError(f"this is {self.node.task_queue}", type="Fenced", non_retryable=True)
