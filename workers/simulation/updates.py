"""Contributions of simulated nodes: real files of the right size and shape, made with numpy at hardly any cost.

The pseudo-gradient points away from a seeded target, with some noise, and shrinks from round to round, so that the
parameters approach it. It is quantised once per round and variant; nodes differ in their headers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.numpy import save

from anabasis.campaign.records import ContributionHeader

BLOCK = 1_024
FORMAT = {"format": "anabasis-update-1", "block": str(BLOCK)}

VARIANTS = 4
"""Different updates per round; a merge of hundreds of the same would hide a mistake in the weights."""

STEP_RMS = 1e-3
"""Root mean square of the first round's pseudo-gradient: that of twenty AdamW steps at 3e-3 is of this order."""

SHRINK_ROUNDS = 30.0

NOISE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Update:
    """One variant, ready to be sealed with a header."""

    tensors: dict[str, NDArray[np.int8] | NDArray[np.float32]]
    payload_hash: str


class Updates:
    """Pseudo-gradients of a model with `count` parameters.

    Args:
        compression: `int8` or `none`, as in the spec.
    """

    def __init__(self, *, count: int, seed: int, compression: str) -> None:
        self._count = count
        self._compression = compression
        draw = np.random.default_rng([seed, count])
        direction = draw.standard_normal(count, dtype=np.float32)
        self._variants = [
            self._quantize((direction + NOISE_SHARE * draw.standard_normal(count)).astype(np.float32))
            for _ in range(VARIANTS)
        ]
        self._rounds = -1
        self._ready: list[Update] = []

    def seal(self, header: ContributionHeader, *, rounds: int) -> bytes:
        """The file of one node for the round after so many merges."""
        if rounds != self._rounds:
            self._ready = [self._scaled(variant, rounds=rounds) for variant in self._variants]
            self._rounds = rounds
        update = self._ready[header.slot % VARIANTS]
        text = header.model_copy(update={"payload_hash": update.payload_hash}).model_dump_json()
        seal = blake3(text.encode()).hexdigest()
        return save(update.tensors, metadata={**FORMAT, "header": text, "seal": seal})

    def _scaled(self, variant: dict[str, NDArray[np.int8] | NDArray[np.float32]], *, rounds: int) -> Update:
        factor = np.float32(STEP_RMS * np.exp(-rounds / SHRINK_ROUNDS))
        scaled = "scale" if "scale" in variant else "q"
        tensors = {**variant, scaled: (variant[scaled] * factor).astype(np.float32)}
        hasher = blake3()
        for name in sorted(tensors):
            hasher.update(tensors[name].tobytes())
        return Update(tensors, hasher.hexdigest())

    def _quantize(self, update: NDArray[np.float32]) -> dict[str, NDArray[np.int8] | NDArray[np.float32]]:
        if self._compression == "none":
            return {"q": update}
        blocks = -(-self._count // BLOCK)
        rows = np.zeros(blocks * BLOCK, dtype=np.float32)
        rows[: self._count] = update
        rows = rows.reshape(blocks, BLOCK)
        scale = np.maximum(np.abs(rows).max(axis=1), np.float32(1e-30)) / np.float32(127)
        q = np.round(rows / scale[:, None]).astype(np.int8).reshape(-1)[: self._count]
        return {"q": np.ascontiguousarray(q), "scale": scale.astype(np.float32)}
