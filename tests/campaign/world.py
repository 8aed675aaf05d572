"""The outside of a campaign for tests of its reducer: machines and aggregator jobs that do as they are told, or not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from anabasis.campaign import events as e
from anabasis.campaign import messages as m
from anabasis.campaign import reducer
from anabasis.campaign.planner import wake_at
from anabasis.campaign.spec import parse_spec
from anabasis.campaign.state import CampaignState


def new_state(*, quiet_finish: bool = True, **sections: Any) -> CampaignState:
    """As `workflows.opening` makes it."""
    spec = parse_spec({"name": "c", "data": {"partitions": 8}, "fleet": {"slots": 3}, **sections})
    return CampaignState(
        spec=spec,
        seed="s",
        store_url="file:///nowhere",
        started_at=0.0,
        desired_slots=spec.fleet.slots,
        target_rounds=spec.target.rounds,
        target_tokens=spec.target.tokens,
        target_loss=spec.target.loss,
        max_cost=spec.budget.max_cost,
        max_node_hours=spec.budget.max_node_hours,
        checkpoint_version=0,
        quiet_finish=quiet_finish,
        start_allowance=max(1.0, spec.fleet.start_rate_per_second),
    )


@dataclass
class World:
    """Feeds events in and keeps what was decided.

    Attributes:
        machines: nonce → identity of every machine that was ever asked for and is not gone.
        told: nonces of machines that were told to stop.
        job: the aggregator job in flight.
        ends: `Finish` decisions; generations: of the rosters; last: decisions of the last event.
    """

    state: CampaignState
    now: float = 0.0
    machines: dict[str, m.NodeIdentity] = field(default_factory=dict[str, m.NodeIdentity])
    started: list[m.NodeIdentity] = field(default_factory=list[m.NodeIdentity])
    told: set[str] = field(default_factory=set[str])
    job: e.StartJob | None = None
    roster: e.WriteRoster | None = None
    journal: e.WriteJournal | None = None
    ends: list[e.Finish] = field(default_factory=list[e.Finish])
    generations: list[int] = field(default_factory=list[int])
    rests: int = 0
    last: list[e.Decision] = field(default_factory=list[e.Decision])

    @staticmethod
    def of(**sections: Any) -> World:
        """Around the campaign of `new_state`."""
        return World(new_state(**sections))

    def feed(self, event: e.Event) -> list[e.Decision]:
        decisions = self.last = reducer.step(self.state, event)
        for decision in decisions:
            self._take(decision)
        return decisions

    def _take(self, decision: e.Decision) -> None:
        match decision:
            case e.StartNode():
                self.started.append(decision.node)
                self.machines[decision.node.nonce] = decision.node
            case e.StopNode():
                self.told.add(decision.node.nonce)
            case e.StartJob():
                assert self.job is None, "two jobs at once"
                self.job = decision
            case e.WriteRoster():
                assert self.roster is None, "two rosters at once"
                self.roster = decision
                self.generations.append(decision.roster.generation)
            case e.WriteJournal():
                assert self.journal is None, "two journals at once"
                self.journal = decision
            case e.Finish():
                self.ends.append(decision)
            case e.ContinueAsNew():
                self.rests += 1
            case _:
                pass

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.feed(e.Ticked(at=self.now))

    def wait(self) -> None:
        """Until time alone calls for a decision."""
        due = wake_at(self.state, now=self.now)
        self.tick(max(0.01, (due if due is not None else self.now + 1.0) - self.now))

    def report(self, node: m.NodeIdentity, kind: str, **fields: Any) -> None:
        event = m.NodeEvent.model_validate(
            {
                "slot": node.slot, "attempt": node.attempt, "nonce": node.nonce, "kind": kind,
                "at": self.now, "paid_from": self.now, "noticed_at": self.now, **fields,
            }
        )  # fmt: skip
        self.feed(e.NodeReported(at=self.now, event=event))
        if kind == "gone":
            self.machines.pop(node.nonce, None)

    def refuse(self, node: m.NodeIdentity) -> None:
        """The node's workflow could not be started: there is no machine."""
        self.machines.pop(node.nonce, None)
        self.feed(e.NodeStartRefused(at=self.now, slot=node.slot, attempt=node.attempt))

    def roster_written(self, *, ok: bool = True) -> None:
        if self.roster is not None:
            self.roster = None
            self.feed(e.RosterWritten(at=self.now, ok=ok))

    def journal_written(self, *, ok: bool = True) -> None:
        if self.journal is not None:
            done, self.journal = self.journal, None
            self.feed(e.JournalWritten(at=self.now, through=done.through, ok=ok, final=done.final))

    def job_ends(self, *, rounds: int | None = None, diverged: bool = False) -> None:
        """The job in flight succeeds; a leg after so many rounds (None: all of it)."""
        job, state = self.job, self.state
        if job is None:
            return
        self.job = None
        if job.kind == "leg":
            left = min(job.version - state.version, state.target_rounds - state.merged_rounds)
            done = max(0, left if rounds is None else min(rounds, left))
            reached = state.merged_rounds + done >= state.target_rounds
            full = state.version + done >= job.version
            reason = "diverged" if diverged else "target" if reached else "until" if full else "interrupted"
            nodes = [
                m.NodeRoundTotals(
                    slot=life.slot, attempt=life.attempt, rounds=done, tokens=10 * done, train_seconds=1.0 * done,
                    sync_seconds=0.1 * done, wait_seconds=0.2 * done,
                )
                for life in state.nodes.values()
            ]  # fmt: skip
            result = m.LegResult.model_validate(
                {
                    "reason": reason, "from_version": state.accounted_version, "version": state.version + done,
                    "loss": 2.0, "tokens_total": state.tokens_total + 10 * done,
                    "merged_rounds": state.merged_rounds + done, "nodes": nodes,
                }
            )  # fmt: skip
            self.feed(e.LegEnded(at=self.now, job=job.number, result=result))
        elif job.kind == "checkpoint":
            written = m.CheckpointResult(version=job.version, key="k", bytes_written=1, seconds=0.1)
            self.feed(e.CheckpointWritten(at=self.now, job=job.number, result=written))
        elif job.kind == "rollback":
            back = m.RollbackResult(version=state.version + 1, restored=state.checkpoint_version or 0)
            self.feed(e.RolledBack(at=self.now, job=job.number, result=back))
        else:
            published = m.PublishResult(model="c", number=1, version=job.version)
            self.feed(e.Published(at=self.now, job=job.number, result=published))

    def job_fails(self, *, permanent: bool = False, failure: str = "StoreUnavailable") -> None:
        if self.job is not None:
            job, self.job = self.job, None
            self.feed(e.JobFailed(at=self.now, job=job.number, failure=failure, text="it broke", permanent=permanent))

    def progress(self, *, rounds: int) -> None:
        """The leg in flight tells of so many rounds more."""
        state = self.state
        report = m.ProgressReport(
            version=state.version + rounds,
            loss=2.0,
            tokens_total=state.tokens_total + 10 * rounds,
            merged_rounds=state.merged_rounds + rounds,
        )
        self.feed(e.Progressed(at=self.now, report=report))

    def command(self, command: Any) -> str | None:
        """Send an update; the reason when it is refused."""
        reason = reducer.refusal(self.state, command)
        if reason is None:
            self.feed(e.Commanded(at=self.now, command=command))
        return reason

    def reload(self) -> None:
        """What continue-as-new does: through JSON, and nothing is in flight."""
        self.state = CampaignState.model_validate(json.loads(self.state.model_dump_json()))
        self.feed(e.Continued(at=self.now))

    def behave(self, *, rounds: int | None = None) -> None:
        """One step of a world in which all goes well."""
        self.roster_written()
        self.journal_written()
        for node in list(self.machines.values()):
            life = self.state.nodes.get(f"{node.slot}-{node.attempt}")
            finished = self.state.target_reached or self.state.outcome is not None
            if node.nonce in self.told or life is None or life.state in ("leaving", "draining") or finished:
                self.report(node, "gone")
            elif life.state in ("requested", "booting", "unknown"):
                self.report(node, "ready")
        if self.job is not None and (self.job.kind != "leg" or self.state.ready_nodes >= self.state.quorum_nodes):
            self.job_ends(rounds=rounds)
        elif self.job is not None and (
            self.state.target_reached or self.state.outcome or self.state.job is None or self.state.job.interrupted
        ):
            self.job_ends(rounds=0)
        self.wait()


def training(**sections: Any) -> World:
    """A campaign with every machine ready, its roster written and its first leg in flight."""
    world = World.of(**sections)
    world.tick()
    for node in world.started:
        world.report(node, "ready")
    while world.roster is not None:
        world.roster_written()
    assert world.job is not None
    return world


def run_well(world: World, *, steps: int = 400) -> None:
    """Until the campaign is over; AssertionError when it takes more than so many steps."""
    for _ in range(steps):
        if world.ends:
            return
        world.behave()
    raise AssertionError(f"not over after {steps} good steps: {world.state.model_dump_json()[:3000]}")
