"""Updates on the wire: symmetric int8 in blocks of 1,024 with one float32 scale each, or plain float32.

`scale = max|x| / 127` per block and `q = round(x / scale)`; the receiver's value is `q · scale`. What rounding
loses is the sender's to keep (error feedback, Karimireddy et al. 2019, arXiv:1901.09847).

Every operation on the receiver's side is one exactly rounded IEEE multiplication or subtraction per element, so
that all machines, thread counts and block boundaries get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from anabasis.errors import CorruptData
from anabasis.training.parameters import BLOCK, padded

Compression = Literal["int8", "none"]

LEVELS = 127.0
TINY = 1e-30
"""The least largest magnitude of a block: a smaller one's scale would have no float32 reciprocal."""

CHUNK = 512 * BLOCK
"""Elements worked on at a time: operands of 2 MiB stay in a last-level cache, and calls into torch are so few that
threads seldom wait for the interpreter lock (64 Ki, which fit a core's own cache, take three times as long)."""


def encode_update(update: Tensor, *, compression: Compression) -> dict[str, Tensor]:
    """Compress a float32 CPU vector [N].

    Returns:
        int8: `q` int8 [N] and `scale` float32 [ceil(N / 1024)]; none: `q` float32 [N], the update itself.
    """
    return _encode(update, compression=compression, keep_residual=False)


def encode_in_place(update: Tensor, *, compression: Compression) -> dict[str, Tensor]:
    """As `encode_update`, and `update` then holds what was lost: the residual for error feedback."""
    return _encode(update, compression=compression, keep_residual=True)


def decode_update(tensors: Mapping[str, Tensor], count: int) -> Tensor:
    """The float32 vector [count] that the receiver sees.

    Raises:
        CorruptData: tensors are missing, or have another shape or dtype.
    """
    compression = check_update(tensors, count=count)
    if compression == "none":
        return tensors["q"].clone()
    decoded = torch.empty(count, dtype=torch.float32)
    for first, end in chunks(count):
        dequantize(tensors, first=first, end=end, out=decoded[first:end])
    return decoded


def subtract_update(flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """`flat -= decoded update`, in place and in constant memory: how a version becomes the next one."""
    compression = check_update(tensors, count=flat.numel())
    if compression == "none":
        flat.sub_(tensors["q"])
        return
    scratch = torch.empty(min(CHUNK, flat.numel()), dtype=torch.float32)
    for first, end in chunks(flat.numel()):
        part = scratch[: end - first]
        dequantize(tensors, first=first, end=end, out=part)
        flat[first:end].sub_(part)


def check_update(tensors: Mapping[str, Tensor], *, count: int) -> Compression:
    """How these tensors are compressed.

    Raises:
        CorruptData: they are not the encoding of a vector of `count` elements.
    """
    q, scale = tensors.get("q"), tensors.get("scale")
    if q is None or tuple(q.shape) != (count,):
        found = "nothing" if q is None else list(q.shape)
        raise CorruptData(f"update: q must have shape [{count}], found {found}")
    if q.dtype == torch.float32 and scale is None:
        return "none"
    blocks = padded(count) // BLOCK
    if q.dtype != torch.int8 or scale is None or scale.dtype != torch.float32 or tuple(scale.shape) != (blocks,):
        raise CorruptData(f"update: needs int8 q with float32 scale of shape [{blocks}], or float32 q alone")
    return "int8"


def norm_of(tensors: Mapping[str, Tensor], *, count: int) -> float:
    """Euclidean norm of the decoded update; not finite exactly when some element is not.

    Independent of threads: squares of int8 sum exactly within a block, and blocks are summed by numpy in order.
    """
    compression = check_update(tensors, count=count)
    scratch = torch.zeros(min(CHUNK, padded(count)), dtype=torch.float32)
    norms = torch.empty(padded(count) // BLOCK, dtype=torch.float32)
    for first, end in chunks(count):
        rows = -(-(end - first) // BLOCK)
        scratch[: end - first].copy_(tensors["q"][first:end])
        scratch[end - first : rows * BLOCK].zero_()
        part = scratch[: rows * BLOCK].view(rows, BLOCK)
        torch.linalg.vector_norm(part, dim=1, out=norms[first // BLOCK : first // BLOCK + rows])
    values = norms.numpy().astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # not finite is an answer here
        if compression == "int8":
            values *= tensors["scale"].numpy()
        return float(np.sqrt(np.sum(values * values)))


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """[first, end) ranges that cover `count` elements; all but the last end on a block's end."""
    for first in range(0, count, CHUNK):
        yield first, min(first + CHUNK, count)


def dequantize(tensors: Mapping[str, Tensor], *, first: int, end: int, out: Tensor) -> None:
    """Decode elements [first, end) of an int8 update into `out` float32 [end − first]; `first` begins a block."""
    out.copy_(tensors["q"][first:end])
    scale = tensors["scale"][first // BLOCK : -(-end // BLOCK)]
    whole = (end - first) // BLOCK * BLOCK
    if whole:
        out[:whole].view(-1, BLOCK).mul_(scale[: whole // BLOCK, None])
    if end - first > whole:
        out[whole:].mul_(scale[-1])


def quantize_rows(rows: Tensor, *, q: Tensor, scale: Tensor, scratch: Tensor) -> None:
    """Quantise whole blocks: `rows` float32 [b, 1024] → `q` int8 [b, 1024], `scale` float32 [b].

    `scratch` float32 [b, 1024] then holds the decoded values. A block with a value that is not finite gets a
    scale that is not finite, so that the receiver notices.
    """
    torch.amax(rows, dim=1, out=scale)
    torch.maximum(scale, torch.amin(rows, dim=1).neg_(), out=scale)
    scale.clamp_min_(TINY).div_(LEVELS)
    torch.mul(rows, scale.reciprocal()[:, None], out=scratch)
    scratch.round_()
    q.copy_(scratch)
    scratch.mul_(scale[:, None])


def _encode(update: Tensor, *, compression: Compression, keep_residual: bool) -> dict[str, Tensor]:
    count = update.numel()
    if compression == "none":
        sent = update.clone()
        if keep_residual:
            update.zero_()
        return {"q": sent}
    q = torch.empty(count, dtype=torch.int8)
    scale = torch.empty(padded(count) // BLOCK, dtype=torch.float32)
    scratch = torch.empty(min(CHUNK, padded(count)), dtype=torch.float32)
    whole = count // BLOCK * BLOCK
    for first, end in chunks(whole):
        rows = update[first:end].view(-1, BLOCK)
        part = scratch[: end - first].view(-1, BLOCK)
        target = q[first:end].view(-1, BLOCK)
        quantize_rows(rows, q=target, scale=scale[first // BLOCK : end // BLOCK], scratch=part)
        if keep_residual:
            rows.sub_(part)
    if count > whole:
        _encode_tail(update[whole:], q=q[whole:], scale=scale[-1:], keep_residual=keep_residual)
    return {"q": q, "scale": scale}


def _encode_tail(update: Tensor, *, q: Tensor, scale: Tensor, keep_residual: bool) -> None:
    """The last, incomplete block, as if zeros followed."""
    row = torch.zeros(1, BLOCK, dtype=torch.float32)
    row[0, : update.numel()].copy_(update)
    codes, scratch = torch.empty(1, BLOCK, dtype=torch.int8), torch.empty(1, BLOCK, dtype=torch.float32)
    quantize_rows(row, q=codes, scale=scale, scratch=scratch)
    q.copy_(codes[0, : q.numel()])
    if keep_residual:
        update.sub_(scratch[0, : update.numel()])
