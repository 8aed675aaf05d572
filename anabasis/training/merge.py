"""The merge of a round: weighted mean, outer Nesterov step, quantisation and application in one pass.

Memory traffic is the cost, so the work is done in ranges that stay in the processor's cache: per element one byte
per contribution, the parameter, momentum and residual are read once and written once. Threads share the ranges, not
the operations: on a machine that is busy with other things, waiting for each other at every operation would be slow.

Every operation is one exactly rounded IEEE operation per element (no fused multiply-add, no reduction but the
maximum of a block), so the result is the same bits for any number of threads, range boundaries and processors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabasis.errors import Diverged
from anabasis.training.contribution import update_metadata
from anabasis.training.outer import OuterState
from anabasis.training.parameters import BLOCK, ParameterImage, padded
from anabasis.training.quantize import Compression, check_update, quantize_rows
from anabasis.training.tensorfile import Image, TensorSpec
from anabasis.training.threads import single_threaded_pool

RANGE = 512 * BLOCK
"""Elements per pass: two scratch arrays and three state arrays of 2 MiB stay in a last-level cache of 16 MiB, and
calls into torch (a microsecond each) are few. Measured best of 64 Ki to 1 Mi on two cores."""


MAX_THREADS = 8
"""More of them only wait for memory."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """One contribution to merge; the weights of a round sum to 1."""

    tensors: dict[str, Tensor]
    weight: float


@dataclass(frozen=True, slots=True)
class _Range:
    """Elements [first, end) of everything: whole blocks, of which `inside` elements are the model's."""

    first: int
    end: int
    inside: int
    parameters: Tensor
    momentum: Tensor
    residual: Tensor
    q: Tensor
    scale: Tensor

    @property
    def length(self) -> int:
        return self.end - self.first


class Merger:
    """Performs outer steps on one model; keeps the output file and the scratch memory between rounds.

    Args:
        count: parameters N.
        compression: of the delta (contributions may differ).
        threads: None = one per core, at most 8.
    """

    def __init__(self, count: int, *, compression: Compression, threads: int | None = None) -> None:
        self.count = count
        self.compression: Compression = compression
        specs = [TensorSpec("q", torch.int8 if compression == "int8" else torch.float32, (count,))]
        if compression == "int8":
            specs.append(TensorSpec("scale", torch.float32, (padded(count) // BLOCK,)))
        self._image = Image(specs, metadata=update_metadata())
        self._codes = self._image.view("q")
        # In the file the scales follow N bytes and may lie unaligned: kernels write here, `step` copies.
        self._scales = torch.zeros(padded(count) // BLOCK, dtype=torch.float32)
        ranges = -(-count // RANGE)
        self._threads = max(1, min(threads or os.cpu_count() or 1, MAX_THREADS, ranges))
        self._scratch = [torch.empty(2, min(RANGE, padded(count))) for _ in range(self._threads)]

    def step(
        self,
        parameters: ParameterImage,
        outer: OuterState,
        contributions: Sequence[Weighted],
        *,
        lr: float,
        momentum: float,
    ) -> memoryview:
        """Merge, take the outer step, quantise, apply: `parameters` and `outer` become the next version's.

        Returns:
            The delta file: valid until the next step.

        Raises:
            CorruptData: a contribution of another shape (nothing has changed).
            Diverged: the step is not finite (parameters and outer state are then unusable).
        """
        inputs = [_Input(item, factor=lr, count=self.count) for item in contributions]
        job = _Job(inputs, parameters, outer, momentum)
        # `next` of a range's iterator is one step under the interpreter lock: threads may share it.
        starts = iter(range(0, padded(self.count), RANGE))
        if self._threads == 1:
            self._work(job, starts, self._scratch[0])
        else:
            with single_threaded_pool(self._threads, name="merge") as pool:
                for done in [pool.submit(self._work, job, starts, scratch) for scratch in self._scratch]:
                    done.result()
        if self.compression == "int8":
            self._image.write("scale", self._scales)
        if not torch.isfinite(self._scales).all():
            raise Diverged("the outer step is not finite: the contributions or the momentum overflowed")
        return self._image.file()

    def _work(self, job: _Job, starts: Iterator[int], scratch: Tensor) -> None:
        for first in starts:
            part = self._range(job.parameters, job.outer, first=first)
            update, spare = scratch[0, : part.length], scratch[1, : part.length]
            _mean(job.inputs, part=part, out=update, spare=spare)
            _look_ahead(update, part=part, momentum=job.momentum)
            self._emit(part, decoded=update)
            part.residual.sub_(update)
            part.parameters.sub_(update)

    def _range(self, parameters: ParameterImage, outer: OuterState, *, first: int) -> _Range:
        end = min(first + RANGE, padded(self.count))
        inside = min(end, self.count) - first
        return _Range(
            first=first,
            end=end,
            inside=inside,
            parameters=parameters.blocks[first:end],
            momentum=outer.momentum[first:end],
            residual=outer.residual[first:end],
            q=self._codes[first : first + inside],
            scale=self._scales[first // BLOCK : end // BLOCK],
        )

    def _emit(self, part: _Range, *, decoded: Tensor) -> None:
        """Write this range of the delta; `decoded` gets what readers will see of it."""
        if self.compression == "none":
            decoded.copy_(part.residual)
            part.q.copy_(part.residual[: part.inside])
            torch.amax(part.residual.view(-1, BLOCK).abs(), dim=1, out=part.scale)  # only to notice what is not finite
            return
        rows, scratch = part.residual.view(-1, BLOCK), decoded.view(-1, BLOCK)
        if part.inside == part.length:
            quantize_rows(rows, q=part.q.view(-1, BLOCK), scale=part.scale, scratch=scratch)
            return
        codes = torch.empty(rows.shape, dtype=torch.int8)
        quantize_rows(rows, q=codes, scale=part.scale, scratch=scratch)
        part.q.copy_(codes.view(-1)[: part.inside])


class _Input:
    """A contribution as the kernel wants it: its weight and the learning rate are folded into the scales."""

    def __init__(self, item: Weighted, *, factor: float, count: int) -> None:
        self.compression = check_update(item.tensors, count=count)
        self.q = item.tensors["q"]
        self.weight = item.weight * factor
        self.scale = item.tensors["scale"] * self.weight if self.compression == "int8" else None

    def decode(self, part: _Range, *, out: Tensor) -> None:
        if part.inside == part.length:
            out.copy_(self.q[part.first : part.end])
        else:
            out.zero_()
            out[: part.inside].copy_(self.q[part.first :])
        if self.scale is None:
            out.mul_(self.weight)
        else:
            out.view(-1, BLOCK).mul_(self.scale[part.first // BLOCK : part.end // BLOCK, None])


@dataclass(frozen=True, slots=True)
class _Job:
    inputs: list[_Input]
    parameters: ParameterImage
    outer: OuterState
    momentum: float


def _mean(inputs: Sequence[_Input], *, part: _Range, out: Tensor, spare: Tensor) -> None:
    """Weighted sum of the decoded contributions, in their order."""
    if not inputs:
        out.zero_()
    for rank, item in enumerate(inputs):
        item.decode(part, out=out if rank == 0 else spare)
        if rank:
            out.add_(spare)


def _look_ahead(update: Tensor, *, part: _Range, momentum: float) -> None:
    """m ← μ (m + η Δ);  e ← e + η Δ + m, for `update` = η Δ."""
    part.residual.add_(update)
    if momentum == 0:
        part.momentum.zero_()
        return
    part.momentum.add_(update).mul_(momentum)
    part.residual.add_(part.momentum)
