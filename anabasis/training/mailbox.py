"""The mailbox of one round: which contributions are here, sound, and from whom."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field

from torch import Tensor

from anabasis.campaign.messages import AggregatorIncident
from anabasis.campaign.records import ContributionHeader, Rejection, Roster, RosterMember, VersionManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectInfo, ObjectStore
from anabasis.training.contribution import unpack_contribution
from anabasis.training.fetch import Shelf, fetch
from anabasis.training.gate import Problem, check_header, check_numbers, norm_outliers
from anabasis.training.quantize import norm_of
from anabasis.training.threads import single_threaded_pool

MAX_REUPLOADS = 3
"""A corrupt contribution is asked for again so many times; then the fault is not the network's."""

MAX_READERS = 8
"""Contributions that are read at the same time: hides a distant store's latency, and fills most links."""

MIN_COMPARED = 3
"""Of two norms nobody can say which is out of line; and for `norm_factor` ≥ 2 neither exceeds it."""

_VERIFYING = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Reading waits for the store, verifying for a core: more threads than cores only wait for the interpreter lock."""

_NAME = re.compile(r"(\d+)-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Letter:
    """One sound contribution. `arrived_at` is by the aggregator's clock; `norm` is None when none is compared."""

    header: ContributionHeader
    tensors: dict[str, Tensor]
    norm: float | None
    size_bytes: int
    arrived_at: float


_Reading = Letter | Problem | CorruptData | None
"""Of one object: sound, not to be merged, damaged, or gone."""


@dataclass
class Mailbox:
    """Collects the round that starts at `manifest`.

    A letter counts once its sender is in the roster, and stays when the sender leaves afterwards: the work is done.
    Letters of others are left alone: their sender may be on its way into the roster, or is a ghost of the past.

    Attributes:
        arrived: by slot. rejected: by (slot, attempt). incidents: what people should know, oldest first.
        outliers: slots whose norm is out of line with the others that are here *now*; later mail may change that.
    """

    store: ObjectStore
    manifest: VersionManifest
    count: int
    sequence_length: int
    clock: Callable[[], float]
    tick: Callable[[], None]
    shelf: Shelf
    arrived: dict[int, Letter] = field(default_factory=dict)
    rejected: dict[tuple[int, int], Rejection] = field(default_factory=dict)
    incidents: list[AggregatorIncident] = field(default_factory=list)
    outliers: dict[int, Problem] = field(default_factory=dict)
    _returned: dict[tuple[int, int], int] = field(default_factory=dict)

    def collect(self, roster: Roster) -> None:
        """Read what is new. Raises storage errors of the store given (a `Resilient` one waits instead)."""
        news = self._news(roster)
        for (info, member), letter in zip(news, self._read_all(news), strict=True):
            self._sort(letter, info=info, member=member)

    def _news(self, roster: Roster) -> list[tuple[ObjectInfo, RosterMember]]:
        """Objects of present members that have not been read yet."""
        members = {member.slot: member for member in roster.members}
        prefix = keys.mail_prefix(self.manifest.version)
        found: list[tuple[ObjectInfo, RosterMember]] = []
        for info in self.store.list(prefix):
            match = _NAME.fullmatch(info.key.removeprefix(prefix))
            if match is None:
                continue
            slot, attempt = int(match[1]), int(match[2])
            member = members.get(slot)
            if slot in self.arrived or (slot, attempt) in self.rejected or member is None:
                continue
            if attempt == member.attempt:
                found.append((info, member))
            elif attempt < member.attempt:
                self._reject(slot, attempt, problem=("fenced", f"attempt {member.attempt} holds the slot now"))
        return found

    def _read_all(self, news: list[tuple[ObjectInfo, RosterMember]]) -> list[_Reading]:
        """All at once, since a store far away has bandwidth but also latency."""
        if len(news) < 2:
            return [self._read(info, member) for info, member in news]
        with single_threaded_pool(min(MAX_READERS, len(news)), name="mail") as pool:
            # The owner's tick may look at context variables (Temporal's activity context is one).
            readings = [pool.submit(copy_context().run, self._read, info, member) for info, member in news]
            return [reading.result() for reading in readings]

    def find_outliers(self, *, norm_factor: float) -> None:
        """Compare the norms of all that is here."""
        norms = {slot: letter.norm for slot, letter in self.arrived.items() if letter.norm is not None}
        self.outliers = norm_outliers(norms, norm_factor=norm_factor)

    def rejected_slots(self, roster: Roster) -> set[int]:
        """Slots whose *present* node sent something that is not to be merged."""
        present = {(member.slot, member.attempt) for member in roster.members}
        return {slot for slot, attempt in self.rejected if (slot, attempt) in present}

    def reject_outliers(self) -> None:
        """The round closes: who is out of line stays out."""
        for slot, problem in self.outliers.items():
            self._reject(slot, self.arrived[slot].header.attempt, problem=problem)

    def _read(self, info: ObjectInfo, member: RosterMember) -> _Reading:
        """Fetch, verify and check one object. Changes nothing here: it may run in any thread."""
        self.tick()
        try:
            data = fetch(self.store, info.key, size_bytes=info.size_bytes, shelf=self.shelf, tick=self.tick)
            with _VERIFYING:
                header, tensors = unpack_contribution(data)
            if (header.slot, header.attempt, header.nonce) != (member.slot, member.attempt, member.nonce):
                raise CorruptData(f"{info.key} is of another life, {header.slot}-{header.attempt} ({header.nonce})")
        except ObjectNotFound:
            return None  # withdrawn since it was listed
        except CorruptData as error:
            return error
        problem = check_header(header, manifest=self.manifest, sequence_length=self.sequence_length) or check_numbers(
            tensors, count=self.count
        )
        if problem is not None:
            return problem
        planned = len(self.manifest.plan.assignments) if self.manifest.plan else 0
        with _VERIFYING:
            norm = norm_of(tensors, count=self.count) if planned >= MIN_COMPARED else None
        return Letter(header, tensors, norm, info.size_bytes, self.clock())

    def _sort(self, reading: _Reading, *, info: ObjectInfo, member: RosterMember) -> None:
        if isinstance(reading, Letter):
            self.arrived[member.slot] = reading
        elif isinstance(reading, CorruptData):
            self._send_back(info, member=member, text=str(reading))
        elif reading is not None:
            self._reject(member.slot, member.attempt, problem=reading)

    def _send_back(self, info: ObjectInfo, *, member: RosterMember, text: str) -> None:
        """Withdraw what is damaged, or not from this node and in its place: the node sees that and uploads again."""
        sender = (member.slot, member.attempt)
        self._returned[sender] = self._returned.get(sender, 0) + 1
        if self._returned[sender] > MAX_REUPLOADS:
            self._reject(*sender, problem=("corrupt", f"damaged {self._returned[sender]} times: {text}"))
            return
        current = self.store.head(info.key)
        if current is not None and current.etag == info.etag:
            self.store.delete(info.key)
        self._note("corrupt_contribution", f"{text}; withdrawn, so that the node uploads it again", sender)

    def _reject(self, slot: int, attempt: int, *, problem: Problem) -> None:
        reason, detail = problem
        self.rejected[slot, attempt] = Rejection(slot=slot, attempt=attempt, reason=reason, detail=detail[:500])
        if reason != "fenced":  # ghosts are routine
            self._note("rejected_contribution", f"{reason}: {detail}", (slot, attempt))

    def _note(self, kind: str, text: str, sender: tuple[int, int]) -> None:
        self.incidents.append(
            AggregatorIncident.model_validate(
                {
                    "kind": kind,
                    "text": text[:500],
                    "slot": sender[0],
                    "attempt": sender[1],
                    "version": self.manifest.version,
                    "noticed_at": self.clock(),
                }
            )
        )
