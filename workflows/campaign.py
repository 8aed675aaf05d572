"""The campaign workflow: a thin, deterministic shell around `anabasis.campaign.reducer`.

It feeds events in (signals, updates, activity results, timers), carries decisions out (activities, child
workflows, signals), and holds no policy of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError, CancelledError

with workflow.unsafe.imports_passed_through():
    from anabasis.campaign import events as e
    from anabasis.campaign import messages as m
    from anabasis.campaign import reducer
    from anabasis.campaign.planner import wake_at
    from anabasis.campaign.spec import CampaignSpec
    from anabasis.campaign.state import CampaignState
    from anabasis.campaign.status import CampaignResult, CampaignStatus, Phase
    from anabasis.campaign.view import result_of, status_of
    from workflows import carry
    from workflows.node import read_signal
    from workflows.opening import open_campaign

HARD_HISTORY_EVENTS = 20_000
"""Continue-as-new at the latest here, whatever the server suggests: its limit is 51,200."""

MAX_HANDLER_SECONDS = 30.0
"""Update handlers answer at once; one that does not must not hold up continue-as-new for ever."""


@workflow.defn(name="TrainingCampaign", failure_exception_types=[Exception])
class TrainingCampaign:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._state: CampaignState | None = None
        self._early: list[m.NodeEvent] = []
        self._todo: list[e.Decision] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._leg: carry.RunningJob | None = None
        self._timer_at: float | None = None
        self._finish: e.Finish | None = None
        self._continue = False
        self._cancelled = False
        self._shown: dict[str, Any] = {}
        self._shows_at_once = False

    @workflow.run
    async def run(self, spec: Any = None, carried: Any = None) -> CampaignResult:
        """Takes the spec as raw JSON: a bad one fails the workflow at once, with every problem by its path."""
        if carried is not None:
            self._state = CampaignState.model_validate(carried)
            self._feed(e.Continued(at=workflow.time()))
        else:
            try:
                self._state = await open_campaign(spec)
            except asyncio.CancelledError:
                raise CancelledError("cancelled before anything was started") from None
            self._feed(e.Ticked(at=workflow.time()))
        for event in self._early:
            self._feed(e.NodeReported(at=workflow.time(), event=event))
        await self._advance()
        return self._end()

    async def _advance(self) -> None:
        self._shows_at_once = workflow.patched("phase-shown-at-once")
        while self._finish is None:
            self._carry_out()
            self._show()
            if self._continue and not self._tasks and not self._todo:
                await self._continue_as_new()
            self._set_timer()
            try:
                await workflow.wait_condition(
                    lambda: bool(self._todo) or self._finish is not None or self._rested() or self._phase_is_news()
                )
            except asyncio.CancelledError:
                self._cancelled = True
                self._feed(e.CancelRequested(at=workflow.time()))

    def _rested(self) -> bool:
        return self._continue and not self._tasks

    def _phase_is_news(self) -> bool:
        """A phase can change without any decision, as when the checkpoint of a pause is written."""
        return self._shows_at_once and self._known.phase.value != self._shown.get("Phase")

    def _feed(self, event: e.Event) -> None:
        """The one way in: apply, then remember what was decided."""
        assert self._state is not None  # noqa: S101 - set before the first event
        self._todo.extend(reducer.step(self._state, event))
        if (
            not self._state.continue_requested
            and self._state.outcome is None
            and not isinstance(event, e.Continued)
            and self._history_is_long(self._state)
        ):
            self._todo.extend(reducer.step(self._state, e.ContinueRequested(at=event.at)))

    @staticmethod
    def _history_is_long(state: CampaignState) -> bool:
        info, limit = workflow.info(), state.spec.control.max_history_events
        if limit is not None:
            return info.get_current_history_length() >= limit
        return info.is_continue_as_new_suggested() or info.get_current_history_length() >= HARD_HISTORY_EVENTS

    def _carry_out(self) -> None:
        todo, self._todo = self._todo, []
        for decision in todo:
            match decision:
                case e.Finish():
                    self._finish = decision
                case e.ContinueAsNew():
                    self._continue = True
                case e.InterruptJob():
                    if self._leg is not None and self._leg.number == decision.number:
                        self._leg.interrupt()
                case e.StartJob():
                    self._leg = carry.RunningJob(decision.number)
                    self._spawn(carry.run_job(self._known, decision, self._leg, self._feed))
                case e.StartNode():
                    self._spawn(carry.start_node(self._known, decision.node, self._feed))
                case e.StopNode():
                    self._spawn(carry.stop_node(decision))
                case e.WriteRoster():
                    self._spawn(carry.write_roster(self._known, decision, self._feed))
                case e.WriteJournal():
                    self._spawn(carry.write_journal(self._known, decision, self._feed))
                case _:
                    pass

    def _spawn(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            await work

        task = asyncio.create_task(guarded())
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                workflow.logger.error("a side task failed: %r", done.exception())

        task.add_done_callback(over)

    def _set_timer(self) -> None:
        """One timer at a time: an earlier one is let fire, since a needless wake-up costs less than a re-arm."""
        now = workflow.time()
        due = wake_at(self._known, now=now)
        if due is None or self._continue or (self._timer_at is not None and self._timer_at <= due + 0.5):
            return
        self._timer_at = due
        asyncio.create_task(self._wake(due, max(0.05, due - now)))  # noqa: RUF006 - it ends by itself

    async def _wake(self, due: float, seconds: float) -> None:
        await workflow.sleep(seconds)
        if self._timer_at == due:
            self._timer_at = None
        if self._finish is None and not self._continue:
            self._feed(e.Ticked(at=workflow.time()))
            self._set_timer()

    async def _continue_as_new(self) -> None:
        await workflow.wait_condition(workflow.all_handlers_finished, timeout=MAX_HANDLER_SECONDS)
        if self._todo:  # an update came in while we waited; come to rest again
            return
        state = self._known
        if state.outcome is not None or self._cancelled:
            self._continue = False
            self._feed(e.Continued(at=workflow.time()))
            return
        state.continued += 1
        workflow.continue_as_new(args=[None, state.model_dump(mode="json")])

    def _end(self) -> CampaignResult:
        state = self._known
        self._show()
        if state.phase is Phase.COMPLETED:
            return result_of(state, now=workflow.time())
        if state.phase is Phase.CANCELLED:
            raise CancelledError(f"cancelled; the last checkpoint is v{state.checkpoint_version}")
        raise ApplicationError(
            state.failure or "failed",
            status_of(state, now=workflow.time()).model_dump(mode="json", exclude={"nodes", "incidents"}),
            type="CampaignFailed",
            non_retryable=True,
        )

    def _show(self) -> None:
        """Search attributes, only those that changed: each upsert is an event."""
        state = self._known
        wanted: dict[str, Any] = {
            "Campaign": state.name,
            "Phase": state.phase.value,
            "Round": state.merged_rounds,
            "Tokens": state.tokens_total,
            "ReadyNodes": state.ready_nodes,
        }
        if state.loss is not None:
            wanted["Loss"] = round(state.loss, 4)
        coarse = {name: wanted[name] for name in ("Phase", "Round")}
        if coarse == {name: self._shown.get(name) for name in coarse}:
            return  # node counts and losses ride along with the next change of phase or round
        wanted["Cost"] = round(status_of(state, now=workflow.time()).cost, 4)
        updates: list[SearchAttributeUpdate[Any]] = []
        for name, value in wanted.items():
            if self._shown.get(name) != value:
                updates.append(_attribute(name, value))
        self._shown = wanted
        workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]

    @property
    def _known(self) -> CampaignState:
        if self._state is None:
            raise ApplicationError("the campaign is still being validated; ask again in a moment", type="NotReady")
        return self._state

    # --- signals ------------------------------------------------------------------------------------------

    # Anybody can send a signal of any shape: one that makes no sense must not end the campaign.

    @workflow.signal
    def node_event(self, event: Any = None, *_: Any) -> None:
        """From node workflows: a `NodeEvent`."""
        read = read_signal(m.NodeEvent, event)
        if read is None:
            return
        if self._state is None:
            self._early.append(read)
        else:
            self._feed(e.NodeReported(at=workflow.time(), event=read))

    @workflow.signal
    def progress(self, report: Any = None, *_: Any) -> None:
        """From the aggregator: a `ProgressReport`."""
        read = read_signal(m.ProgressReport, report)
        if read is not None and self._state is not None:
            self._feed(e.Progressed(at=workflow.time(), report=read))

    # --- query --------------------------------------------------------------------------------------------

    @workflow.query
    def status(self) -> CampaignStatus:
        """What people and scripts look at."""
        if self._state is None:
            name = workflow.info().workflow_id.removeprefix("campaign/")
            return CampaignStatus(name=name, phase=Phase.VALIDATING, now=workflow.time())
        return status_of(self._state, now=workflow.time())

    # --- updates ------------------------------------------------------------------------------------------

    @workflow.update
    def pause(self, command: m.PauseCommand) -> m.Receipt:
        """Stop at once without losing work in flight, write a checkpoint, hold."""
        return self._command(command, "pausing; a checkpoint is being written")

    @workflow.update
    def resume(self, command: m.ResumeCommand) -> m.Receipt:
        """Go on."""
        return self._command(command, "resumed")

    @workflow.update
    def scale(self, command: m.ScaleCommand) -> m.Receipt:
        """Another number of slots."""
        return self._command(command, f"scaling to {command.slots} slots")

    @workflow.update
    def drain(self, command: m.DrainCommand) -> m.Receipt:
        """Let one node leave; its slot is filled again."""
        return self._command(command, f"draining the node in slot {command.slot}")

    @workflow.update
    def extend(self, command: m.ExtendCommand) -> m.Receipt:
        """A later target."""
        return self._command(command, "extended")

    @workflow.update
    def set_budget(self, command: m.SetBudgetCommand) -> m.Receipt:
        """Other limits."""
        return self._command(command, "budget set")

    @workflow.update
    def checkpoint_now(self, command: m.CheckpointCommand) -> m.Receipt:
        """A checkpoint outside of the schedule."""
        return self._command(command, "a checkpoint is being written")

    @workflow.update
    def approve(self, command: m.ApproveCommand) -> m.Receipt:
        """Publish."""
        return self._command(command, "approved")

    def _command(self, command: Any, text: str) -> m.Receipt:
        self._feed(e.Commanded(at=workflow.time(), command=command))
        return m.Receipt(text=text, phase=self._known.phase.value)

    def _refuse(self, command: m.Message) -> None:
        reason = reducer.refusal(self._known, command)
        if reason is not None:
            raise ApplicationError(reason, type="Refused", non_retryable=True)

    @pause.validator
    def _may_pause(self, command: m.PauseCommand) -> None:
        self._refuse(command)

    @resume.validator
    def _may_resume(self, command: m.ResumeCommand) -> None:
        self._refuse(command)

    @scale.validator
    def _may_scale(self, command: m.ScaleCommand) -> None:
        self._refuse(command)

    @drain.validator
    def _may_drain(self, command: m.DrainCommand) -> None:
        self._refuse(command)

    @extend.validator
    def _may_extend(self, command: m.ExtendCommand) -> None:
        self._refuse(command)

    @set_budget.validator
    def _may_set_budget(self, command: m.SetBudgetCommand) -> None:
        self._refuse(command)

    @checkpoint_now.validator
    def _may_checkpoint(self, command: m.CheckpointCommand) -> None:
        self._refuse(command)

    @approve.validator
    def _may_approve(self, command: m.ApproveCommand) -> None:
        self._refuse(command)


def _attribute(name: str, value: Any) -> SearchAttributeUpdate[Any]:
    if isinstance(value, str):
        return SearchAttributeKey.for_keyword(name).value_set(value)
    if isinstance(value, float):
        return SearchAttributeKey.for_float(name).value_set(value)
    return SearchAttributeKey.for_int(name).value_set(int(value))


__all__ = ["CampaignSpec", "TrainingCampaign"]
Feed = Callable[[e.Event], None]
