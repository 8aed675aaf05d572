"""The aggregator: turns contributions into versions. Restartable at any line, and never alone by assumption.

All that it knows can be rebuilt from the store. The commit is one create-if-absent of `versions/<v>.json`; of two
aggregators one wins, and the other follows the winner's version. Outages of the store are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from anabasis.campaign import rounds
from anabasis.campaign.messages import AggregatorIncident, LegResult, ProgressReport
from anabasis.campaign.records import Roster, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import AnabasisError, CorruptData, Diverged, Fenced, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.storage.versions import read_roster, read_spec, try_read_version
from anabasis.training.commit import commit_merge
from anabasis.training.leg import Leg
from anabasis.training.mailbox import Mailbox
from anabasis.training.recovery import GlobalState, Recovery

NOTABLE_OUTAGE_SECONDS = 5.0
"""Shorter outages of the store are retried without a word."""

UNKNOWN_ROUND_SECONDS = 10.0
"""A round of unknown duration may take so long before its waiting is worth telling."""


class Interrupted(AnabasisError):
    """Raised by the owner's tick: stop now, nothing is lost."""


PROBE_SECONDS = 5.0
PROBE_BYTES = 1 << 20
"""Of an overdue round: nodes may be silent because the store takes no writes. As large as their mail, up to this."""


@dataclass(slots=True)
class _RoundInFlight:
    opened_at: float
    overdue_at: float
    stalled_at: float
    probed_at: float = 0.0


def _nothing(_: str) -> None:
    pass


class Aggregator:
    """Advances one campaign. Not thread-safe: one caller at a time.

    Args:
        store: the campaign's root.
        identity: who this is, for the manifests.
        on_tick: called often with what is waited for in words (empty: nothing); may raise `Interrupted`.
        clock: seconds since the epoch. sleep: waits so many seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        identity: str = "",
        on_tick: Callable[[str], None] = _nothing,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store: ObjectStore = Resilient(store, on_wait=self._on_outage, give_up_after_seconds=None)
        self.identity = identity
        self.on_tick = on_tick
        self.clock = clock
        self._sleep = sleep
        self._state: GlobalState | None = None
        self._last: VersionManifest | None = None
        self._outage_since: float | None = None
        self._incidents: list[AggregatorIncident] = []
        self._round: _RoundInFlight | None = None

    # --- the state ------------------------------------------------------------------------------------

    def current(self) -> GlobalState:
        """State of the newest version: loaded, or caught up with what others have committed."""
        if self._state is None:
            self._state = self._recover()
        while (newer := try_read_version(self.store, self._state.manifest.version + 1)) is not None:
            self._follow(self._state, newer)
        self._last = self._state.manifest
        return self._state

    def drop(self) -> None:
        """Forget the state in memory: it is rebuilt from the store when it is needed."""
        self._state = None

    def take_incidents(self) -> list[AggregatorIncident]:
        """What has been noticed since the last call."""
        taken, self._incidents = self._incidents, []
        return taken

    def progress(self, *, waiting_for: str) -> ProgressReport | None:
        """Where things stand, or None before the first version is loaded.

        Args:
            waiting_for: what the last tick said. It is passed on once the round takes longer than planned, or the
                store does not answer: that a round waits for its nodes at work is no news.
        """
        if self._last is None:
            return None
        return ProgressReport(
            version=self._last.version,
            loss=self._last.loss,
            tokens_total=self._last.tokens_total,
            merged_rounds=self._last.merged_rounds,
            contributors=len(self._last.contributions),
            waiting_for=self._worth_saying(waiting_for),
        )

    def _worth_saying(self, waiting_for: str) -> str:
        now, current = self.clock(), self._round
        if self._outage_since is not None:
            return waiting_for if now - self._outage_since >= NOTABLE_OUTAGE_SECONDS else ""
        if current is None or now < current.overdue_at:
            return ""
        stalled = f"stalled for {now - current.opened_at:.0f} s: " if now >= current.stalled_at else ""
        return f"{stalled}{waiting_for}"

    def _recover(self) -> GlobalState:
        recovery = Recovery(self.store, tick=self.tick, clock=self.clock)
        try:
            state = recovery.newest()
        except (CorruptData, ObjectNotFound):
            # Another aggregator's garbage collection may have overtaken the reading: look again, once.
            recovery = Recovery(self.store, tick=self.tick, clock=self.clock)
            state = recovery.newest()
        self._incidents.extend(recovery.incidents)
        return state

    def _follow(self, state: GlobalState, manifest: VersionManifest) -> None:
        """Take over another's version; when its merge cannot be repeated, load from scratch."""
        self._state = None
        recovery = Recovery(self.store, tick=self.tick, clock=self.clock)
        try:
            recovery.follow(state, manifest)
        except (CorruptData, ObjectNotFound, Diverged):
            state = self._recover()
        self._state = state

    # --- rounds ---------------------------------------------------------------------------------------

    def advance(self, *, until_version: int, from_version: int | None = None) -> LegResult:
        """Merge rounds until a version, the target, divergence, or until the roster or the owner says stop.

        Args:
            from_version: totals cover the versions after it; None = the newest at the start.
        """
        leg = Leg(self.store, from_version=from_version)
        try:
            reason, detail = self._advance(leg, until_version=until_version)
        except Interrupted as stop:
            reason, detail = "interrupted", str(stop)
        finally:
            self._round = None
        return leg.result(reason=reason, detail=detail, incidents=self.take_incidents())

    def _advance(self, leg: Leg, *, until_version: int) -> tuple[str, str]:
        leg.catch_up(self.current().manifest)
        spec = read_spec(self.store)
        opened_at = self.clock()
        while True:
            state = self.current()
            leg.catch_up(state.manifest)
            self.tick("")
            roster = self._roster()
            manifest = state.manifest
            if (spike := self._spike(state, spec)) is not None:
                return "diverged", spike
            reached = rounds.target_reached(
                roster,
                merged_rounds=manifest.merged_rounds,
                tokens_total=manifest.tokens_total,
                loss=manifest.loss,
            )
            if reached is not None:
                return "target", reached
            if manifest.version >= until_version:
                return "until", ""
            try:
                # Not before this leg began (the campaign may have been paused), nor in the future (clocks differ).
                since = min(max(opened_at, manifest.committed_at), self.clock())
                self._run_round(state, spec, opened_at=since)
            except Diverged as error:
                return "diverged", str(error)
            finally:
                state.shelf.take_back()

    def _run_round(self, state: GlobalState, spec: CampaignSpec, *, opened_at: float) -> None:
        """Wait for the round's contributions and commit the next version, or notice that another has.

        Raises:
            Diverged: everyone has reported, and nothing can be merged.
        """
        expected = state.manifest.plan.expected_seconds if state.manifest.plan else None
        patience = UNKNOWN_ROUND_SECONDS if expected is None else spec.rounds.grace_factor * expected
        self._round = _RoundInFlight(
            opened_at=opened_at,
            overdue_at=opened_at + max(patience, spec.rounds.min_deadline_seconds),
            stalled_at=opened_at + spec.rounds.stalled_after_seconds,
        )
        mailbox = Mailbox(
            store=self.store,
            manifest=state.manifest,
            count=state.count,
            sequence_length=spec.data.sequence_length,
            clock=self.clock,
            tick=lambda: self.tick("reading contributions"),
            shelf=state.shelf,
        )
        try:
            while try_read_version(self.store, state.manifest.version + 1) is None:
                roster = self._roster()
                if roster.phase != "training":
                    raise Interrupted(f"the campaign is {roster.phase}")
                mailbox.collect(roster)
                verdict = self._decide(mailbox, spec, roster=roster, opened_at=opened_at)
                if isinstance(verdict, rounds.Close):
                    self._commit(state, spec, mailbox=mailbox, close=verdict, roster=roster, opened_at=opened_at)
                    return
                if isinstance(verdict, rounds.Hopeless):
                    raise Diverged(f"version {state.manifest.version}: {verdict.reason}")
                self._probe(state)
                self._pause(spec, verdict)
        finally:
            self._incidents.extend(mailbox.incidents)

    def _decide(
        self, mailbox: Mailbox, spec: CampaignSpec, *, roster: Roster, opened_at: float
    ) -> rounds.Wait | rounds.Close | rounds.Hopeless:
        plan = mailbox.manifest.plan
        if plan is None:
            raise CorruptData(f"version {mailbox.manifest.version} has no plan")
        mailbox.find_outliers(norm_factor=spec.health.norm_factor)
        return rounds.decide_close(
            self.clock(),
            opened_at=opened_at,
            plan=plan,
            roster=roster,
            arrived={s: letter.arrived_at for s, letter in mailbox.arrived.items() if s not in mailbox.outliers},
            rejected=mailbox.rejected_slots(roster) | set(mailbox.outliers),
            spec=spec,
        )

    def _commit(
        self,
        state: GlobalState,
        spec: CampaignSpec,
        *,
        mailbox: Mailbox,
        close: rounds.Close,
        roster: Roster,
        opened_at: float,
    ) -> None:
        mailbox.reject_outliers()
        self._state = None  # until the commit, what is in memory is neither this version's nor the next one's
        try:
            commit_merge(
                self.store,
                state,
                spec,
                mailbox=mailbox,
                close=close,
                roster=roster,
                opened_at=opened_at,
                clock=self.clock,
                identity=self.identity,
            )
        except Fenced:
            return  # another was faster: `current` loads its version
        self._state = state

    def _spike(self, state: GlobalState, spec: CampaignSpec) -> str | None:
        """Whether the newest merge is one to roll back; found again by an aggregator that starts after it."""
        if state.manifest.kind != "merge" or len(state.history) < 2:
            return None
        before = state.history[:-1]
        return rounds.loss_spiked(
            state.manifest.loss,
            mean=before[-1].loss_mean,
            rounds_seen=rounds.merges_in_row(before),
            spike_factor=spec.health.spike_factor,
        )

    # --- waiting --------------------------------------------------------------------------------------

    def tick(self, waiting_for: str) -> None:
        """Sign of life after something worked. Raises `Interrupted` when the owner wants this to stop."""
        if self._outage_since is not None:
            now, began = self.clock(), self._outage_since
            self._outage_since = None
            if now - began >= NOTABLE_OUTAGE_SECONDS:
                self._incidents.append(
                    AggregatorIncident(
                        kind="store_unavailable",
                        text=f"the object store did not answer for {now - began:.1f} s; nothing was lost",
                        noticed_at=began,
                        mended_at=now,
                    )
                )
        self.on_tick(waiting_for)

    def _on_outage(self, reason: str, seconds: float) -> None:
        if self._outage_since is None:
            self._outage_since = self.clock() - seconds
        self.on_tick(f"the object store, for {seconds:.0f} s now ({reason})")

    def _roster(self) -> Roster:
        while (roster := read_roster(self.store)) is None:
            self._pause_for("the roster to be written", seconds=1.0)
        return roster

    def _probe(self, state: GlobalState) -> None:
        """Write what a node would have to write: when that fails, the wait is the store's, and is said to be."""
        now, current = self.clock(), self._round
        if current is None or now < max(current.overdue_at, current.probed_at + PROBE_SECONDS):
            return
        self.store.put(keys.PROBE, bytes(min(state.count, PROBE_BYTES)))
        self.store.delete(keys.PROBE)
        current.probed_at = self.clock()

    def _pause(self, spec: CampaignSpec, wait: rounds.Wait) -> None:
        seconds = spec.rounds.poll_seconds
        if wait.until is not None:
            seconds = min(seconds, max(wait.until - self.clock(), 0.001))
        self._pause_for(wait.reason, seconds=seconds)

    def _pause_for(self, reason: str, *, seconds: float) -> None:
        self.tick(reason)
        self._sleep(seconds)


def interrupt(reason: str) -> NoReturn:
    """What a tick calls to stop its aggregator."""
    raise Interrupted(reason)
