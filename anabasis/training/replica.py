"""A reader's copy of the global parameters: bit-identical everywhere, proven by the fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from anabasis.campaign.records import BlobRef, CheckpointManifest, TensorLayout, VersionManifest
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob
from anabasis.storage.checkpoints import list_checkpoints, read_checkpoint
from anabasis.storage.versions import newest_version, read_version
from anabasis.training.chain import check_link
from anabasis.training.contribution import unpack_delta
from anabasis.training.parameters import ParameterImage, fingerprint
from anabasis.training.quantize import subtract_update

Progress = Callable[[str], None]
"""Called with a few words between transfers: the place to tick."""


def _silent(_: str) -> None:
    pass


@dataclass
class Replica:
    """Parameters of one version.

    Attributes:
        manifest: of that version.
        image: the parameters as a safetensors file; `flat` is float32 [N], a view into it.
        skipped: what was found damaged on the way, in words.
    """

    manifest: VersionManifest
    image: ParameterImage
    skipped: list[str] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def flat(self) -> Tensor:
        return self.image.flat

    @property
    def layout(self) -> list[TensorLayout]:
        return self.image.layout

    @classmethod
    def load(cls, store: ObjectStore, *, version: int | None = None, on_progress: Progress | None = None) -> Replica:
        """The newest version, or the one asked for: newest sound snapshot or checkpoint, and the deltas since.

        Raises:
            ObjectNotFound: the campaign has no such version.
            CorruptData: no sound way leads to it.
        """
        progress = on_progress or _silent
        wanted = newest_version(store) if version is None else version
        if wanted is None:
            raise ObjectNotFound(f"{store.url}: no version is committed yet; prepare the campaign first")
        way = Way(store, read_version(store, wanted))
        for base in way.bases():
            try:
                replica = cls.at(store, base, on_progress=progress)
                for manifest in way.after(base):
                    replica.advance(store, manifest, on_progress=progress)
            except (CorruptData, ObjectNotFound) as error:
                way.skipped.append(f"version {base.version}: {error}")
                continue
            replica.skipped = way.skipped
            return replica
        raise CorruptData(f"version {wanted} cannot be rebuilt: {'; '.join(way.skipped) or 'no snapshot is left'}")

    @classmethod
    def at(cls, store: ObjectStore, base: Base, *, on_progress: Progress | None = None) -> Replica:
        """The version of a snapshot or checkpoint. Raises as `advance` does."""
        (on_progress or _silent)(f"loading version {base.version}")
        image = ParameterImage(base.layout)
        image.load(get_blob(store, base.parameters))
        check_fingerprint(image.flat, manifest=base.manifest)
        return cls(base.manifest, image)

    def advance(self, store: ObjectStore, manifest: VersionManifest, *, on_progress: Progress | None = None) -> None:
        """Become the next version, by its delta or snapshot.

        Raises:
            CorruptData: a hash, the chain or the fingerprint is wrong; the replica is then unusable: load anew.
            ObjectNotFound: the delta has been collected already; load anew.
        """
        (on_progress or _silent)(f"loading version {manifest.version}")
        check_link(manifest, parent=self.manifest)
        if manifest.snapshot is not None:
            self.image.load(get_blob(store, manifest.snapshot))
        elif manifest.delta is not None:
            subtract_update(self.flat, unpack_delta(get_blob(store, manifest.delta)))
        check_fingerprint(self.flat, manifest=manifest)
        self.manifest = manifest


@dataclass(frozen=True, slots=True)
class Base:
    """Full parameters from which a version can be reached."""

    manifest: VersionManifest
    parameters: BlobRef
    layout: list[TensorLayout]
    checkpoint: CheckpointManifest | None = None

    @property
    def version(self) -> int:
        return self.manifest.version


class Way:
    """The versions that lead to `target`, read once each.

    Attributes:
        skipped: why starting points were not usable, in words.
    """

    def __init__(self, store: ObjectStore, target: VersionManifest) -> None:
        self._store = store
        self.target = target
        self.skipped: list[str] = []
        self._manifests = {target.version: target}

    def manifest(self, version: int) -> VersionManifest:
        if version not in self._manifests:
            self._manifests[version] = read_version(self._store, version)
        return self._manifests[version]

    def bases(self) -> Iterator[Base]:
        """Where loading may start, nearest first: checkpoints, and manifests with a snapshot."""
        layout = self.manifest(0).layout
        if layout is None:
            raise CorruptData("version 0 has no layout")
        checkpoints = set(list_checkpoints(self._store))
        for version in range(self.target.version, -1, -1):
            manifest = self.manifest(version)
            if version in checkpoints:
                try:
                    checkpoint = read_checkpoint(self._store, version)
                    yield Base(manifest, checkpoint.parameters, layout, checkpoint)
                except (CorruptData, ObjectNotFound) as error:
                    self.skipped.append(f"checkpoint {version}: {error}")
            if manifest.snapshot is not None:
                yield Base(manifest, manifest.snapshot, layout)

    def after(self, base: Base) -> Iterator[VersionManifest]:
        """Versions from the one after `base` to the target."""
        for version in range(base.version + 1, self.target.version + 1):
            yield self.manifest(version)


def check_fingerprint(flat: Tensor, *, manifest: VersionManifest) -> None:
    """Raise `CorruptData` unless these are exactly the parameters of this version."""
    found = fingerprint(flat)
    if found != manifest.fingerprint:
        raise CorruptData(
            f"version {manifest.version}: fingerprint of the parameters is {found}, not {manifest.fingerprint}"
        )
