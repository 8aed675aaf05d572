"""A node's own state between rounds, as a file: what a replacement needs to go on bit-identically."""

from __future__ import annotations

import json
from dataclasses import dataclass

from torch import Tensor

from anabasis.errors import CorruptData
from anabasis.training.inner import InnerState
from anabasis.training.tensorfile import pack, unpack

FORMAT = "anabasis-node-state-1"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The optimizer's memory and what compression has lost so far.

    Attributes:
        residual: float32 [N]; None: nothing lost.
    """

    inner: InnerState
    residual: Tensor | None


def pack_state(state: NodeState) -> bytes:
    """The state as a safetensors file."""
    tensors = {"exp_avg": state.inner.exp_avg, "exp_avg_sq": state.inner.exp_avg_sq}
    if state.residual is not None:
        tensors["residual"] = state.residual
    return pack(tensors, metadata={"format": FORMAT, "steps": json.dumps(state.inner.steps)})


def unpack_state(data: bytes | bytearray | memoryview) -> NodeState:
    """The state of a file (a copy).

    Raises:
        CorruptData: it is no such file.
    """
    tensors, metadata = unpack(data)
    try:
        steps = [int(number) for number in json.loads(metadata["steps"])]
        inner = InnerState(steps, tensors["exp_avg"].clone(), tensors["exp_avg_sq"].clone())
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"node state of {len(data)} bytes cannot be read: {error!r}") from None
    if metadata.get("format") != FORMAT:
        raise CorruptData(f"node state: format {metadata.get('format')!r}; known: {FORMAT}")
    residual = tensors.get("residual")
    return NodeState(inner, residual.clone() if residual is not None else None)
