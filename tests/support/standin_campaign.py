"""A stand-in for the campaign workflow: same type, query, updates and search attributes; rounds are timers.

For tests of the client and the commands, which must see every phase quickly and on demand. `recipe_options` steer it:
`round_seconds` (default 0: none; a timer takes a second at least), `fail_at` (round at which it fails), `hold_at`
(round at which it waits for `extend`), `incident_at` (round at which a node is lost), `continue_every` (rounds per
run before continue-as-new).

`python -m tests.support.standin_campaign` serves it until SIGTERM.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign import messages as m
    from anabasis.campaign.spec import CampaignSpec, parse_spec
    from anabasis.campaign.status import (
        Bucket,
        CampaignResult,
        CampaignStatus,
        Incident,
        NodeState,
        NodeStatus,
        Phase,
    )
    from anabasis.errors import InvalidSpec
    from workers.connect import connect
    from workers.process import run_worker

TOKENS_PER_ROUND = 4_096


@workflow.defn(name="TrainingCampaign")
class StandInCampaign:
    """Merges one round per timer. Its loss falls from 7 towards 2."""

    @workflow.init
    def __init__(self, raw: Any, carried: dict[str, Any] | None = None) -> None:
        self.raw = raw
        carried = carried or {}
        self.rounds = int(carried.get("rounds", 0))
        self.continued = int(carried.get("continued", 0))
        self.started_at = float(carried.get("started_at", workflow.info().start_time.timestamp()))
        self.phase = Phase.VALIDATING
        self.spec: CampaignSpec | None = None
        self.failure = ""
        self.pause_reason = ""
        self.target = int(carried.get("target", 0))
        self.slots = int(carried.get("slots", 0))
        self.checkpoint: int | None = None
        self.approved = False
        self.incidents: list[Incident] = []
        self.attempts: dict[int, int] = {}

    @workflow.run
    async def run(self, raw: Any, carried: dict[str, Any] | None = None) -> CampaignResult:
        try:
            self.spec = parse_spec(raw)
        except InvalidSpec as error:
            self.phase, self.failure = Phase.FAILED, str(error)
            raise ApplicationError(str(error), type="InvalidSpec", non_retryable=True) from None
        self.target = self.target or self.spec.target.rounds
        self.slots = self.slots or self.spec.fleet.slots
        try:
            return await self._train(self.spec)
        except BaseException as error:
            if is_cancelled_exception(error):
                self.phase = Phase.CANCELLED
                self._publish_attributes()
            raise

    async def _train(self, spec: CampaignSpec) -> CampaignResult:
        options = spec.recipe_options
        self._enter(Phase.TRAINING)
        first = self.rounds
        while self.rounds < self.target:
            await workflow.wait_condition(lambda: not self.pause_reason)
            if options.get("hold_at") == self.rounds:
                await workflow.wait_condition(lambda: self.target > spec.target.rounds)
            if seconds := float(options.get("round_seconds", 0)):
                await asyncio.sleep(seconds)
            self.rounds += 1
            self._publish_attributes()
            if options.get("incident_at") == self.rounds:
                self._lose_node(0)
            if options.get("fail_at") == self.rounds:
                self.failure = "ValueError: shapes do not match"
                self._enter(Phase.FAILED)
                raise ApplicationError(self.failure, type="UserCodeError", non_retryable=True)
            if options.get("continue_every") == self.rounds - first and self.rounds < self.target:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(args=[self.raw, self._carried()])
        self._enter(Phase.PUBLISHING)
        if spec.control.approve_publish:
            await workflow.wait_condition(lambda: self.approved)
        self.checkpoint = self.rounds
        self._enter(Phase.COMPLETED)
        return self._result(spec)

    def _carried(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "continued": self.continued + 1,
            "started_at": self.started_at,
            "target": self.target,
            "slots": self.slots,
        }

    def _result(self, spec: CampaignSpec) -> CampaignResult:
        return CampaignResult(
            name=spec.name,
            version=self.rounds,
            loss=self._loss(),
            validation_loss=None,
            tokens_total=self.rounds * TOKENS_PER_ROUND,
            model=spec.name,
            model_number=1,
            checkpoint_version=self.checkpoint,
            paid_node_seconds=self._paid(),
            cost=0.0,
            ledger={Bucket.TRAIN: self._paid()},
            incidents_total=len(self.incidents),
            store_url="file:///nowhere",
        )

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._publish_attributes()

    def _loss(self) -> float | None:
        return 2.0 + 5.0 / (1 + self.rounds) if self.rounds else None

    def _paid(self) -> float:
        return self.slots * 2.0 * self.rounds

    def _lose_node(self, slot: int) -> None:
        now = workflow.now().timestamp()
        attempt = self.attempts.get(slot, 1)
        self.attempts[slot] = attempt + 1
        self.incidents.append(
            Incident(
                sequence=len(self.incidents) + 1,
                kind="lost",
                text=f"node {slot}-{attempt} went silent",
                decision="replaced",
                slot=slot,
                attempt=attempt,
                happened_at=now - 2,
                noticed_at=now,
                decided_at=now,
                mended_at=now + 1,
            )
        )

    def _publish_attributes(self) -> None:
        assert self.spec is not None
        changes = [
            SearchAttributeKey.for_keyword("Campaign").value_set(self.spec.name),
            SearchAttributeKey.for_keyword("Phase").value_set(self.phase.value),
            SearchAttributeKey.for_int("Round").value_set(self.rounds),
            SearchAttributeKey.for_int("Tokens").value_set(self.rounds * TOKENS_PER_ROUND),
            SearchAttributeKey.for_int("ReadyNodes").value_set(0 if self.phase.terminal else self.slots),
        ]
        loss = self._loss()
        if loss is not None:
            changes.append(SearchAttributeKey.for_float("Loss").value_set(loss))
        workflow.upsert_search_attributes(changes)

    @workflow.query
    def status(self) -> CampaignStatus:
        name = self.spec.name if self.spec else workflow.info().workflow_id.removeprefix("campaign/")
        present = 0 if self.phase.terminal else self.slots
        return CampaignStatus(
            name=name,
            phase=self.phase,
            waiting_for=f"paused: {self.pause_reason}" if self.pause_reason else "",
            version=self.rounds,
            merged_rounds=self.rounds,
            target_rounds=self.target,
            loss=self._loss(),
            tokens_total=self.rounds * TOKENS_PER_ROUND,
            desired_slots=self.slots,
            ready_nodes=present,
            nodes=[self._node(slot) for slot in range(present)],
            checkpoint_version=self.checkpoint,
            store_url=(self.spec and self.spec.store) or "file:///nowhere",
            started_at=self.started_at,
            now=workflow.now().timestamp(),
            continued=self.continued,
            paid_node_seconds=self._paid(),
            ledger={Bucket.TRAIN: self._paid()},
            incidents=self.incidents,
            incidents_total=len(self.incidents),
            published={name: 1} if self.phase is Phase.COMPLETED else {},
            failure=self.failure,
        )

    def _node(self, slot: int) -> NodeStatus:
        return NodeStatus(
            slot=slot,
            attempt=self.attempts.get(slot, 1),
            nonce="0" * 12,
            state=NodeState.READY,
            provider="standin",
            since=self.started_at,
            rounds=self.rounds,
            tokens=self.rounds * TOKENS_PER_ROUND // max(1, self.slots),
        )

    def _receipt(self, text: str) -> m.Receipt:
        return m.Receipt(text=text, phase=self.phase.value)

    @workflow.update
    def pause(self, command: m.PauseCommand) -> m.Receipt:
        self.pause_reason = command.reason or "by an operator"
        self._enter(Phase.PAUSED)
        return self._receipt("pauses after the round in flight" + (", without nodes" if command.release_nodes else ""))

    @workflow.update
    def resume(self, command: m.ResumeCommand) -> m.Receipt:
        self.pause_reason = ""
        self._enter(Phase.TRAINING)
        return self._receipt("goes on")

    @resume.validator
    def _check_resume(self, command: m.ResumeCommand) -> None:
        if not self.pause_reason:
            raise ApplicationError("it is not paused", type="Rejected", non_retryable=True)

    @workflow.update
    def scale(self, command: m.ScaleCommand) -> m.Receipt:
        self.slots = command.slots
        return self._receipt(f"wants {command.slots} nodes")

    @workflow.update
    def drain(self, command: m.DrainCommand) -> m.Receipt:
        self.attempts[command.slot] = self.attempts.get(command.slot, 1) + 1
        return self._receipt(f"drains slot {command.slot}")

    @drain.validator
    def _check_drain(self, command: m.DrainCommand) -> None:
        if command.slot >= self.slots:
            raise ApplicationError(f"there is no slot {command.slot}", type="Rejected", non_retryable=True)

    @workflow.update
    def extend(self, command: m.ExtendCommand) -> m.Receipt:
        self.target = command.rounds or self.target
        return self._receipt(f"goes on to round {self.target}")

    @workflow.update
    def set_budget(self, command: m.SetBudgetCommand) -> m.Receipt:
        return self._receipt(f"may cost {command.max_cost} and use {command.max_node_hours} node-hours")

    @workflow.update
    def checkpoint_now(self, command: m.CheckpointCommand) -> m.Receipt:
        self.checkpoint = self.rounds
        return self._receipt("writes a checkpoint after this round")

    @workflow.update
    def approve(self, command: m.ApproveCommand) -> m.Receipt:
        self.approved = True
        return self._receipt("publishes")


async def serve(stop: asyncio.Event) -> None:
    """Serve the stand-in on the campaigns' queue of the configured Temporal."""
    client = await connect(patience_seconds=30)
    worker = Worker(
        client,
        task_queue=m.CAMPAIGN_QUEUE,
        workflows=[StandInCampaign],
        graceful_shutdown_timeout=timedelta(seconds=1),
    )
    async with worker:
        print("serving", flush=True)
        await stop.wait()


if __name__ == "__main__":
    run_worker(serve)
