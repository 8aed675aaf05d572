"""What a node remembers between rounds: the inner optimizer's state and what compression has lost so far.

Both belong to samples. When a round is committed without this node's contribution, its samples will be trained
again, so what it would have sent must not come back through the residual. Deterministic campaigns also take the
optimizer's state back, and keep both in the store, for a replacement to go on bit-identically.
"""

from __future__ import annotations

import structlog
from torch import Tensor

from anabasis.campaign.records import BlobRef, VersionManifest, keys
from anabasis.errors import CorruptData, ObjectNotFound
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob, hash_bytes, put_blob
from anabasis.storage.versions import read_version
from anabasis.training.local_round import LocalTrainer
from anabasis.training.node_state import NodeState, pack_state, unpack_state

MAX_LOOK_BACK = 64
"""Versions searched for the slot's last committed state; a slot that sat out longer begins anew."""

_log = structlog.get_logger(__name__)


class Memory:
    """Error feedback and inner state of one node.

    Attributes:
        residual: float32 [N], added to the next contribution; None: nothing.
    """

    def __init__(self, trainer: LocalTrainer, store: ObjectStore, *, slot: int, deterministic: bool) -> None:
        self.residual: Tensor | None = None
        self._trainer = trainer
        self._store = store
        self._slot = slot
        self._deterministic = deterministic
        self._before: NodeState | None = None
        self._residual_before: Tensor | None = None
        self._open = False

    def open_round(self) -> None:
        """From here on, everything may have to be taken back."""
        self._open = True
        self._residual_before = self.residual
        if self._deterministic:
            self._before = NodeState(self._trainer.inner.state(), self.residual)

    def save(self, version: int) -> BlobRef | None:
        """Deterministic campaigns: put the state after the round that starts at `version` into the store."""
        if not self._deterministic:
            return None
        data = pack_state(NodeState(self._trainer.inner.state(), self.residual))
        return put_blob(self._store, keys.node_state(version, self._slot, hash_bytes(data)), data)

    def close_round(self, *, committed: bool) -> None:
        """The round is over: keep what it changed, or take it back."""
        if not self._open:
            return
        if not committed:
            self.residual = self._residual_before
            if self._before is not None:
                self._trainer.load_state(self._before.inner)
        self._open, self._before, self._residual_before = False, None, None

    def drop(self) -> None:
        """Begin anew: after a rollback, or when the state is no longer finite."""
        self._open, self._before, self._residual_before, self.residual = False, None, None, None
        self._trainer.forget()

    def restore(self, manifest: VersionManifest) -> None:
        """Deterministic campaigns: become what this slot's last committed contribution left behind."""
        if self._deterministic:
            self.recall(self._last_state(manifest))

    def recall(self, ref: BlobRef | None) -> None:
        """Become the state that was saved there. When it is lost, the node begins anew, and the log says so."""
        if ref is None:
            return
        try:
            state = unpack_state(get_blob(self._store, ref))
            self._trainer.load_state(state.inner)
        except (ObjectNotFound, CorruptData) as error:
            _log.warning("node_state_lost", key=ref.key, reason=str(error))
            return
        self.residual = state.residual
        _log.info("node_state_restored", key=ref.key)

    def _last_state(self, manifest: VersionManifest) -> BlobRef | None:
        for _ in range(MAX_LOOK_BACK):
            if manifest.kind != "merge":
                return None  # nodes begin anew after a rollback
            for contribution in manifest.contributions:
                if contribution.header.slot == self._slot:
                    return contribution.header.state
            manifest = read_version(self._store, manifest.version - 1)
        return None
