"""A node in this process: its waits are the moments in which a test does the rest of the world's part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabasis.campaign.messages import AggregatorIncident
from anabasis.campaign.records import RosterMember, keys
from anabasis.storage.base import ObjectStore
from anabasis.training.contribution import unpack_contribution
from anabasis.training.dataset import read_dataset_manifest
from anabasis.training.node_loop import NodeLoop
from anabasis.training.patience import Patience
from anabasis.training.progress import Progress
from tests.aggregation.world import World, patient

MAX_WAITS = 3_000
"""A node that waits more often than this in a test hangs."""


class Node:
    """A `NodeLoop` with its progress; `waited` counts its pauses.

    Args:
        during: called in every pause instead of sleeping.
        store: what the node sees; None: the world's.
    """

    def __init__(
        self,
        world: World,
        *,
        slot: int = 0,
        attempt: int = 1,
        during: Callable[[], object] = lambda: None,
        store: ObjectStore | None = None,
        **options: Any,
    ) -> None:
        self.world = world
        self.slot, self.attempt = slot, attempt
        self.during = during
        self.waited = 0
        self.stopping = False
        self.phases: list[str] = []
        self.progress = Progress(world.folder / f"progress-{slot}-{attempt}.json")
        dataset = read_dataset_manifest(world.store)
        assert dataset is not None
        self.loop = NodeLoop(
            store or world.store,
            spec=world.spec,
            dataset=dataset,
            member=RosterMember(slot=slot, attempt=attempt, nonce=f"n{slot}-{attempt}"),
            patience=Patience(self.progress, stop=lambda: self.stopping, sleep=self._wait),
            cache_dir=world.folder / "cache",
            **{"look_every_seconds": 0.02, "roster_every_seconds": 0.01, **options},
        )

    def run(self) -> str:
        return self.loop.run()

    def stop(self) -> None:
        self.stopping = True

    @property
    def residual(self) -> Any:
        return self.loop._memory.residual

    def _wait(self, _: float) -> None:
        self.waited += 1
        self.phases.append(self.progress.phase)
        assert self.waited < MAX_WAITS, f"the node waits for ever in phase {self.progress.phase}"
        self.during()


class Aggregating:
    """Merges what is there, and ends the campaign at a version; call it in a node's waits."""

    def __init__(self, world: World, *, until: int) -> None:
        self.world = world
        self.until = until
        self.aggregator = world.aggregator()
        self.incidents: list[AggregatorIncident] = []

    def __call__(self) -> None:
        if self.world.newest.version < self.until:
            self.aggregator.on_tick = patient(20)
            self.incidents += self.aggregator.advance(until_version=self.until).incidents
            self.aggregator.on_tick = lambda _: None
        if self.world.newest.version >= self.until:
            finish(self.world)


def finish(world: World) -> None:
    """The campaign is over, by its roster."""
    from anabasis.storage.versions import read_roster

    roster = read_roster(world.store)
    if roster is not None and roster.phase != "finished":
        world.seat(*[member.slot for member in roster.members], phase="finished")


def mail_of(world: World, version: int, *, slot: int = 0, attempt: int = 1) -> Any:
    """Header of a contribution in the mailbox, or None."""
    info = world.store.head(keys.mail(version, slot, attempt))
    return unpack_contribution(world.store.get(info.key))[0] if info else None


SECTIONS: dict[str, Any] = {
    "fleet": {"slots": 1},
    "training": {
        "inner_steps": 10,
        "batch_size": 4,
        "inner_lr": 3e-2,
        "warmup_fraction": 0,
        "dense_warmup_rounds": 0,
        "deterministic": False,
    },
    "target": {"rounds": 1_000},
}


def learnable(folder: Path, **sections: Any) -> World:
    """A campaign of one slot that learns something in a second."""
    values = dict(SECTIONS)
    for section, fields in sections.items():
        values[section] = {**values.get(section, {}), **fields} if isinstance(fields, dict) else fields
    return World(folder, **values)
