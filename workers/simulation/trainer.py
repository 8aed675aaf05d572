"""A simulated trainer: takes part in rounds through the real mailbox, and sleeps where a real one computes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Literal

from anabasis.campaign.messages import NodeIdentity
from anabasis.campaign.records import Assignment, ContributionHeader, Roster, keys
from anabasis.errors import StorageError
from anabasis.training.sampling import SampleFeed, committed_offsets
from workers.simulation.model import loss_at
from workers.simulation.world import View, World

TICK_SECONDS = 1.0
"""Longest time between two signs of life."""

Seat = Literal["held", "empty", "lost"]


class SimulatedTrainer:
    """Run `train` as a task. It returns when the campaign is finished or someone newer holds the slot.

    Attributes:
        ticks: grows while it lives. phase: as a real trainer's.
    """

    def __init__(self, world: World, *, node: NodeIdentity, steps_per_second: float) -> None:
        self.ticks = 0
        self.steps = 0
        self.version = -1
        self.phase = "starting"
        self._world = world
        self._node = node
        self._steps_per_second = steps_per_second
        self._noise = random.Random(f"loss {node.slot} {node.attempt}")
        self._tried = -1
        self._since = time.monotonic()
        self._sent: tuple[str, bytes] | None = None

    async def train(self) -> None:
        """Take part until the end."""
        while self.phase not in ("finished", "fenced"):
            view = self._world.view
            if view is None:
                await self._wait("waiting")
                continue
            self.version = view.manifest.version
            if view.roster is not None and view.roster.phase == "finished":
                self._tick("finished")
            elif seat_of(view.roster, self._node) == "lost":
                self._tick("fenced")
            elif (assignment := self._due(view)) is not None:
                await self._take_part(view, assignment)
            else:
                await self._resend_if_withdrawn(view)
                paused = view.roster is not None and view.roster.phase == "paused"
                await self._wait("paused" if paused else "waiting")

    def _due(self, view: View) -> Assignment | None:
        manifest, roster = view.manifest, view.roster
        if roster is None or roster.phase != "training" or self._tried == manifest.version or manifest.plan is None:
            return None
        if manifest.merged_rounds >= roster.target_rounds or seat_of(roster, self._node) != "held":
            return None
        assignment = manifest.plan.assignments.get(str(self._node.slot))
        return assignment if assignment is not None and assignment.partitions else None

    async def _take_part(self, view: View, assignment: Assignment) -> None:
        self._tried = view.manifest.version
        waited = time.monotonic() - self._since
        started = time.monotonic()
        if not await self._compute(assignment.inner_steps, version=view.manifest.version):
            return
        train_seconds = time.monotonic() - started
        header = self._header(view, assignment, train_seconds=train_seconds, wait_seconds=waited)
        data = view.updates.seal(header, rounds=view.manifest.merged_rounds)
        self._sent = (keys.mail(view.manifest.version, self._node.slot, self._node.attempt), data)
        self._tick("uploading")
        await self._upload()
        self._since = time.monotonic()

    async def _compute(self, steps: int, *, version: int) -> bool:
        """Sleep through the inner steps; False when the round was closed meanwhile."""
        left = steps / self._steps_per_second
        before = self.steps
        done_at = time.monotonic() + left
        while (left := done_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, TICK_SECONDS))
            done = 1 - max(0.0, done_at - time.monotonic()) * self._steps_per_second / steps
            self.steps = before + min(steps, int(steps * done))
            self._tick("training")
            view = self._world.view
            if view is not None and view.manifest.version != version:
                return False
        self.steps = before + steps
        return True

    async def _upload(self) -> None:
        if self._sent is None:
            return
        while True:
            try:
                await self._world.upload(*self._sent)
            except StorageError:
                await self._wait("store_unavailable")
                continue
            self._tick()
            return

    async def _resend_if_withdrawn(self, view: View) -> None:
        """The aggregator deletes a damaged contribution to ask for it again."""
        if self._sent is None or self._tried != view.manifest.version or self.ticks % 10:
            return
        try:
            if not await self._world.exists(self._sent[0]):
                await self._upload()
        except StorageError:
            return

    def _header(
        self, view: View, assignment: Assignment, *, train_seconds: float, wait_seconds: float
    ) -> ContributionHeader:
        manifest, spec = view.manifest, view.spec
        samples = assignment.inner_steps * spec.training.batch_size
        feed = SampleFeed(
            seed=spec.training.seed,
            offsets=committed_offsets(manifest.offsets, lanes=assignment.partitions),
            partitions=spec.data.partitions,
            samples=view.dataset.samples,
        )
        vocabulary = view.dataset.vocabulary_size
        evaluates = manifest.plan is not None and manifest.plan.evaluate_slot == self._node.slot
        return ContributionHeader(
            campaign=manifest.campaign,
            base_version=manifest.version,
            base_chain=manifest.chain,
            slot=self._node.slot,
            attempt=self._node.attempt,
            nonce=self._node.nonce,
            steps=assignment.inner_steps,
            tokens=samples * view.dataset.sequence_length,
            loss=loss_at(manifest.merged_rounds, vocabulary_size=vocabulary, noise=self._noise),
            consumed={str(lane): span for lane, span in feed.consumed(samples).items()},
            train_seconds=train_seconds,
            sync_seconds=0.0,
            wait_seconds=wait_seconds,
            compression=spec.training.compression,
            payload_hash="",
            validation_loss=loss_at(manifest.merged_rounds, vocabulary_size=vocabulary) if evaluates else None,
        )

    async def _wait(self, phase: str) -> None:
        self._tick(phase if self._world.available else "store_unavailable")
        await self._world.changed(seconds=TICK_SECONDS)

    def _tick(self, phase: str | None = None) -> None:
        self.ticks += 1
        self.phase = phase or self.phase


def seat_of(roster: Roster | None, node: NodeIdentity) -> Seat:
    """Whether a node holds its slot: `empty` = not yet (or no longer) in the roster, `lost` = someone newer came."""
    if roster is None:
        return "empty"
    holder = next((member for member in roster.members if member.slot == node.slot), None)
    if holder is None:
        return "lost" if roster.attempts.get(str(node.slot), 0) > node.attempt else "empty"
    if (holder.attempt, holder.nonce) == (node.attempt, node.nonce):
        return "held"
    return "lost" if holder.attempt >= node.attempt else "empty"
