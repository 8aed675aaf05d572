"""What the aggregator holds between rounds, and how a fresh one rebuilds it bit by bit.

Parameters follow from any snapshot and the deltas. Momentum and residual do not: they are in checkpoints, and
since the last one every merge is *repeated* from the mail that its manifest names. Where mail is gone, momentum
starts anew, and an incident says so: training goes on a little slower, and no sample is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabasis.campaign.messages import AggregatorIncident
from anabasis.campaign.records import VersionManifest, keys
from anabasis.campaign.rounds import HISTORY_ROUNDS
from anabasis.errors import CorruptData, Diverged, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob
from anabasis.storage.versions import newest_version, read_version
from anabasis.training.chain import check_link
from anabasis.training.contribution import unpack_contribution
from anabasis.training.fetch import Shelf, fetch
from anabasis.training.merge import Merger, Weighted
from anabasis.training.outer import OuterState
from anabasis.training.parameters import ParameterImage, count_of
from anabasis.training.quantize import Compression
from anabasis.training.replica import Base, Replica, Way, check_fingerprint

MIN_SHELF_BYTES = 16 << 20
"""Mail of small models always stays in memory."""


@dataclass
class GlobalState:
    """Parameters and outer state of one version, with the memory to make the next.

    Attributes:
        history: the newest manifests, oldest first; the last one is `manifest`.
    """

    manifest: VersionManifest
    parameters: ParameterImage
    outer: OuterState
    shelf: Shelf
    history: list[VersionManifest] = field(default_factory=list)
    _merger: Merger | None = None

    @property
    def count(self) -> int:
        return self.outer.count

    def merger(self, compression: Compression) -> Merger:
        """What makes deltas of this compression; kept, for its memory, as long as that does not change."""
        if self._merger is None or self._merger.compression != compression:
            self._merger = Merger(self.count, compression=compression)
        return self._merger

    def now_at(self, manifest: VersionManifest) -> None:
        """Parameters and outer state have become those of this version."""
        self.manifest = manifest
        self.history = [*self.history, manifest][-HISTORY_ROUNDS:]


class Recovery:
    """Rebuilds the state of the newest version.

    Args:
        tick: called between transfers with a few words; may raise to stop.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        tick: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tick = tick
        self._clock = clock
        self.incidents: list[AggregatorIncident] = []

    def newest(self) -> GlobalState:
        """State of the newest version.

        Raises:
            ObjectNotFound: nothing is committed. CorruptData: no sound way leads to the newest parameters.
        """
        wanted = newest_version(self._store)
        if wanted is None:
            raise ObjectNotFound(f"{self._store.url}: no version is committed yet; prepare the campaign first")
        way = Way(self._store, read_version(self._store, wanted))
        state = self._by_replay(way)
        for text in way.skipped:
            self._note(f"fell back to an older starting point: {text}", version=wanted)
        if state is None:
            state = self._by_deltas(wanted)
        first = max(0, wanted - HISTORY_ROUNDS + 1)
        state.history = [way.manifest(version) for version in range(first, wanted + 1)]
        return state

    def follow(self, state: GlobalState, manifest: VersionManifest) -> None:
        """Make `state` the next version's, as another aggregator has committed it.

        Raises:
            CorruptData, ObjectNotFound, Diverged: it cannot be repeated; `state` is then unusable.
        """
        check_link(manifest, parent=state.manifest)
        if manifest.snapshot is not None:
            state.parameters.load(get_blob(self._store, manifest.snapshot))
            state.outer.reset()
        else:
            self._repeat_merge(state, manifest)
        check_fingerprint(state.parameters.flat, manifest=manifest)
        state.now_at(manifest)

    def _by_replay(self, way: Way) -> GlobalState | None:
        for base in way.bases():
            try:
                state = self._at(base)
            except (CorruptData, ObjectNotFound) as error:
                way.skipped.append(f"version {base.version}: {error}")
                continue
            try:
                for manifest in way.after(base):
                    self._tick(f"repeating the merge of version {manifest.version}")
                    self.follow(state, manifest)
            except (CorruptData, ObjectNotFound, Diverged) as error:
                self._note(
                    f"the merges since version {base.version} cannot be repeated ({error}); outer momentum starts anew",
                    version=way.target.version,
                )
                return None
            return state
        return None

    def _at(self, base: Base) -> GlobalState:
        self._tick(f"loading version {base.version}")
        replica = Replica.at(self._store, base)
        state = self._state_of(replica)
        if base.checkpoint is not None:
            state.outer.load(get_blob(self._store, base.checkpoint.outer))
        return state

    def _by_deltas(self, version: int) -> GlobalState:
        return self._state_of(Replica.load(self._store, version=version, on_progress=self._tick))

    def _state_of(self, replica: Replica) -> GlobalState:
        count = count_of(replica.layout)
        return GlobalState(
            manifest=replica.manifest,
            parameters=replica.image,
            outer=OuterState(count),
            # The mail of two nodes at int8 (of large models); more of it goes to temporary files.
            shelf=Shelf(memory_bytes=max(MIN_SHELF_BYTES, 2 * (count + count // 100))),
        )

    def _repeat_merge(self, state: GlobalState, manifest: VersionManifest) -> None:
        """The merge that made `manifest`, from the same mail in the same order."""
        plan = state.manifest.plan
        if plan is None or manifest.delta is None:
            raise CorruptData(f"version {manifest.version} has no delta, or no plan led to it")
        # The spec may have changed since; the delta's own size tells how it was compressed.
        compression: Compression = "none" if manifest.delta.size_bytes >= 4 * state.count else "int8"
        try:
            items = [self._letter(state, manifest, rank) for rank in range(len(manifest.contributions))]
            state.merger(compression).step(
                state.parameters, state.outer, items, lr=plan.outer_lr, momentum=plan.outer_momentum
            )
        finally:
            state.shelf.take_back()

    def _letter(self, state: GlobalState, manifest: VersionManifest, rank: int) -> Weighted:
        item = manifest.contributions[rank]
        key = keys.mail(state.manifest.version, item.header.slot, item.header.attempt)
        info = self._store.head(key)
        if info is None:
            raise ObjectNotFound(f"{key} is gone")
        data = fetch(
            self._store, key, size_bytes=info.size_bytes, shelf=state.shelf, tick=lambda: self._tick(f"reading {key}")
        )
        header, tensors = unpack_contribution(data)
        if header.payload_hash != item.header.payload_hash:
            raise CorruptData(f"{key} is not the contribution that version {manifest.version} merged")
        return Weighted(tensors, item.weight)

    def _note(self, text: str, *, version: int) -> None:
        self.incidents.append(
            AggregatorIncident(kind="checkpoint_fallback", text=text[:500], version=version, noticed_at=self._clock())
        )
