"""A node's life in a campaign: hold a replica, train each round that it is planned for, send, follow.

One loop, in which every turn does the one thing that is due: follow a new version, train a round, or wait. All that
it knows can be rebuilt from the store, so it may be killed at any line: a contribution that is not in the mailbox
moves no offset, and one that is there is adopted by the next life of the same node.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import structlog

from anabasis.campaign.records import Assignment, DatasetManifest, Roster, RosterMember, VersionManifest
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import CorruptData, Fenced, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import read_roster, read_version, try_read_version
from anabasis.training.contribute import encode_round, header_of
from anabasis.training.contribution import pack_contribution
from anabasis.training.local_round import LocalResult, RoundWork
from anabasis.training.lookout import LOOK_EVERY_SECONDS, Lookout, seat_of
from anabasis.training.memory import Memory
from anabasis.training.node_setup import build_trainer, check_layout
from anabasis.training.outbox import Outbox
from anabasis.training.pace import Every, PollPace, round_seconds_allowed
from anabasis.training.patience import Interrupted, Patience
from anabasis.training.progress import Meter, transfer_seconds
from anabasis.training.replica import Replica
from anabasis.training.sampling import committed_offsets
from anabasis.training.team import Solo, Team

ROSTER_EVERY_SECONDS = 1.0
"""Between reads of the roster, and between looks whether the sent contribution is still there."""

KEEP_ALIVE_SECONDS = 10.0
"""The other processes of this node wait for their leader and take it for dead after much longer."""

BUILD_SECONDS = 300.0
"""For the recipe to build its model, without a sign of life."""

COMPILE_SECONDS = 900.0
"""For the first step of a compiled model, without a sign of life."""

LOAD_ATTEMPTS = 3
"""A replica that cannot be built is built anew this often: what was damaged on the way is not the next time."""

_log = structlog.get_logger(__name__)


class NodeLoop:
    """One node. `run` returns when the campaign is finished or the node is told to stop.

    Args:
        store: the campaign's root.
        spec, dataset: of the campaign, as they are there.
        member: who this is.
        patience: how it waits, and learns that it has to stop.
        cache_dir: for shards; shared by all trainers of the machine.
        team: the processes of this node, of which this is the leading one.
        look_every_seconds: to the store while it trains. roster_every_seconds: while it waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        spec: CampaignSpec,
        dataset: DatasetManifest,
        member: RosterMember,
        patience: Patience,
        cache_dir: Path,
        team: Team | None = None,
        look_every_seconds: float = LOOK_EVERY_SECONDS,
        roster_every_seconds: float = ROSTER_EVERY_SECONDS,
    ) -> None:
        self._plain_store = store
        self._store = patience.resilient(store)
        self._spec = spec
        self._dataset = dataset
        self._member = member
        self._patience = patience
        self._progress = patience.progress
        self._cache_dir = cache_dir
        self._team = team or Solo()
        self._look_every_seconds = look_every_seconds
        self._meter = Meter()
        self._pace = PollPace(longest_seconds=spec.rounds.poll_seconds)
        self._outbox = Outbox(self._store, member=member)
        self._roster: Roster | None = None
        self._roster_due = Every(roster_every_seconds)
        self._mail_due = Every(roster_every_seconds)
        self._keep_alive_due = Every(KEEP_ALIVE_SECONDS)
        self._tried_version = -1
        self._adopted = False
        self._compiling = ExitStack()

    def run(self) -> Literal["finished", "stopped"]:
        """Take part until the end.

        Raises:
            Fenced: another node holds the slot now.
            UserCodeError, InvalidSpec: the recipe's fault. CorruptData: no sound version can be loaded.
            StoreDenied: the store refuses this node. (Outages are waited for.)
        """
        try:
            self._join()
            outcome = self._live()
        except Interrupted:
            return "stopped"  # the others may be in the middle of a step, and cannot be told
        except Fenced:
            self._team.dismiss()
            raise
        self._team.dismiss()
        return outcome

    def _live(self) -> Literal["finished", "stopped"]:
        while not self._patience.stop():
            self._refresh_roster()
            if self._roster is not None and self._roster.phase == "finished":
                return "finished"
            self._turn()
        return "stopped"

    # --- joining ----------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._progress.tick("starting")
        with self._meter.timing("sync"), self._progress.vouched(BUILD_SECONDS):
            self._trainer = build_trainer(
                self._store,
                spec=self._spec,
                dataset=self._dataset,
                cache_dir=self._cache_dir,
                team=self._team,
                on_progress=self._progress.tick,
            )
        with self._meter.timing("sync"):
            self._replica = self._load()
        if self._spec.training.compile:
            self._compiling.enter_context(self._progress.vouched(COMPILE_SECONDS))
        check_layout(self._trainer, self._replica.layout)
        self._memory = Memory(
            self._trainer, self._store, slot=self._member.slot, deterministic=self._spec.training.deterministic
        )
        self._memory.restore(self._replica.manifest)
        _log.info("joined", version=self._replica.version, parameters=self._replica.flat.numel())

    def _load(self) -> Replica:
        for attempt in range(1, LOAD_ATTEMPTS + 1):
            try:
                replica = self._load_once()
            except (CorruptData, ObjectNotFound) as error:
                _log.warning("replica_not_loaded", attempt=attempt, reason=str(error))
                if attempt == LOAD_ATTEMPTS:
                    raise
                self._pause(1.0, "waiting")
                continue
            self._progress.version = replica.version
            return replica
        raise AssertionError("unreachable")

    def _load_once(self) -> Replica:
        first = read_version(self._store, 0)
        size = first.snapshot.size_bytes if first.snapshot else 0
        with self._progress.vouched(transfer_seconds(size)):
            return Replica.load(self._store, on_progress=self._progress.words)

    # --- one turn ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        newer = try_read_version(self._store, self._replica.version + 1)
        if newer is not None:
            self._follow(newer)
            self._pace.reset()
            return
        assignment = self._due()
        if assignment is not None:
            self._take_part(assignment)
            self._pace.reset()
            return
        if self._mail_due():
            self._outbox.ensure()
        paused = self._roster is not None and self._roster.phase == "paused"
        self._pause(self._pace.next_seconds(), "paused" if paused else "waiting")

    def _due(self) -> Assignment | None:
        """What this node has to do in the round that starts at its version, if anything (anymore)."""
        manifest, roster = self._replica.manifest, self._roster
        if roster is None or roster.phase != "training" or self._tried_version == manifest.version:
            return None
        if manifest.plan is None or manifest.merged_rounds >= roster.target_rounds:
            return None
        if seat_of(roster, member=self._member) != "held":
            return None
        assignment = manifest.plan.assignments.get(str(self._member.slot))
        return assignment if assignment is not None and assignment.partitions else None

    def _follow(self, manifest: VersionManifest) -> None:
        """Become the next version; if that fails, the newest one, from scratch."""
        before = self._replica.version
        blob = manifest.delta or manifest.snapshot
        with self._meter.timing("sync"):
            try:
                with self._progress.vouched(transfer_seconds(blob.size_bytes if blob else 0)):
                    self._replica.advance(self._store, manifest, on_progress=self._progress.words)
                passed = [manifest]
            except (CorruptData, ObjectNotFound) as error:
                _log.warning("replica_reloaded", version=manifest.version, reason=str(error))
                self._replica = self._load()
                passed = [read_version(self._store, v) for v in range(before + 1, self._replica.version + 1)]
        for version in passed:
            self._settle(version)
            self._progress.tick()
        self._progress.version = self._replica.version
        self._progress.tick()

    def _settle(self, manifest: VersionManifest) -> None:
        """What the commit of a version means for what this node did in the round before."""
        if manifest.kind == "rollback":
            self._memory.drop()
        elif manifest.version - 1 == self._tried_version:
            headers = (contribution.header for contribution in manifest.contributions)
            mine = (self._member.slot, self._member.attempt, self._member.nonce)
            self._memory.close_round(committed=any((h.slot, h.attempt, h.nonce) == mine for h in headers))
        self._outbox.clear()

    # --- a round ----------------------------------------------------------------------------------------

    def _take_part(self, assignment: Assignment) -> None:
        manifest = self._replica.manifest
        self._tried_version = manifest.version
        if self._adopt(manifest):
            return
        validation_loss = self._evaluate(manifest)
        self._memory.open_round()
        with self._meter.timing("train"):
            result = self._train(manifest, assignment)
        if result is None:
            self._memory.close_round(committed=False)
            return
        self._progress.tick("uploading")
        with self._meter.timing("sync"), self._progress.vouched(transfer_seconds(self._replica.flat.nbytes)):
            self._send(manifest, result, validation_loss=validation_loss)

    def _adopt(self, manifest: VersionManifest) -> bool:
        """Whether an earlier life of this node has sent its contribution to this round already."""
        if self._adopted:
            return False
        self._adopted = True
        header = self._outbox.adopt(version=manifest.version, chain=manifest.chain)
        if header is None:
            return False
        self._memory.recall(header.state)
        _log.info("contribution_adopted", version=manifest.version, steps=header.steps)
        return True

    def _evaluate(self, manifest: VersionManifest) -> float | None:
        if manifest.plan is None or manifest.plan.evaluate_slot != self._member.slot:
            return None
        self._progress.tick("evaluating")
        with self._meter.timing("sync"):
            return self._trainer.evaluate(self._replica.flat, on_batch=self._progress.tick)

    def _train(self, manifest: VersionManifest, assignment: Assignment) -> LocalResult | None:
        """The round's inner steps; None when there is nothing worth sending."""
        plan = manifest.plan
        assert plan is not None  # noqa: S101 (`_due` has looked)
        work = RoundWork(
            version=manifest.version,
            slot=self._member.slot,
            offsets=committed_offsets(manifest.offsets, lanes=assignment.partitions),
            steps=assignment.inner_steps,
            lr=self._spec.training.inner_lr * plan.lr_scale,
        )
        allowed = round_seconds_allowed(self._spec, plan)
        least = min(self._spec.training.min_inner_steps, assignment.inner_steps)
        tokens = self._spec.training.batch_size * self._trainer.dataset.sequence_length
        started = time.monotonic()

        def go_on(steps: int) -> bool:
            if self._patience.stop() or lookout.in_vain:
                return False
            return steps < least or time.monotonic() - started < allowed

        def on_step() -> None:
            self._compiling.close()
            self._progress.stepped(tokens=tokens)

        self._progress.tick("training")
        with self._lookout(manifest) as lookout, self._compiling:
            result = self._trainer.run(work, self._replica.flat, go_on=go_on, on_step=on_step)
        self._roster = lookout.roster
        self._check_seat()
        cut_short = self._patience.stop() and result.steps < work.steps
        useless = cut_short and (self._spec.training.deterministic or result.steps < least)
        return None if lookout.in_vain or useless or result.steps == 0 else result

    def _lookout(self, manifest: VersionManifest) -> Lookout:
        assert self._roster is not None  # noqa: S101 (`_due` has looked)
        return Lookout(
            self._plain_store,
            version=manifest.version,
            member=self._member,
            roster=self._roster,
            every_seconds=self._look_every_seconds,
        )

    def _send(self, manifest: VersionManifest, result: LocalResult, *, validation_loss: float | None) -> None:
        encoded = encode_round(
            self._replica.flat,
            self._trainer.inner.flat(),
            residual=self._memory.residual,
            compression=self._spec.training.compression,
        )
        self._memory.residual = encoded.residual
        state = self._memory.save(manifest.version) if encoded.finite else None
        header = header_of(
            manifest,
            result,
            member=self._member,
            seconds=self._meter.take(),
            compression=self._spec.training.compression,
            sequence_length=self._trainer.dataset.sequence_length,
            validation_loss=validation_loss,
            state=state,
        )
        self._outbox.send(pack_contribution(header, encoded.tensors), version=manifest.version, chain=manifest.chain)
        self._progress.tick()
        _log.debug("contributed", version=manifest.version, steps=result.steps, loss=result.loss)
        if not encoded.finite:
            _log.warning("not_finite", version=manifest.version, loss=result.loss)
            self._memory.drop()

    # --- roster, waiting --------------------------------------------------------------------------------

    def _refresh_roster(self) -> None:
        if self._roster_due():
            self._roster = read_roster(self._store) or self._roster
            self._check_seat()

    def _check_seat(self) -> None:
        if self._roster is None:
            return
        self._progress.generation = self._roster.generation
        if seat_of(self._roster, member=self._member) == "lost":
            raise Fenced(
                f"slot {self._member.slot} is held by someone newer than attempt {self._member.attempt} "
                f"(roster generation {self._roster.generation})"
            )

    def _pause(self, seconds: float, phase: Literal["waiting", "paused"]) -> None:
        if self._keep_alive_due():
            self._team.keep_alive()
        with suppress(Interrupted):  # `_live` sees the same
            self._patience.pause(seconds, phase)
