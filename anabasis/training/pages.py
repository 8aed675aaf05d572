"""Large buffers on huge pages.

A pass over a hundred million float32 values in pages of 4 KiB waits mostly for address translation: on the machines
measured, updating three such arrays in place is three times as fast in pages of 2 MiB.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

HUGE_BYTES = 2 << 20
"""A huge page of x86-64, and of ARM with pages of 4 KiB."""

WORTHWHILE_BYTES = 2 * HUGE_BYTES
"""Smaller buffers come from the ordinary allocator."""


def allocate(size_bytes: int) -> Tensor:
    """Zeros, uint8 [size_bytes]; on huge pages where the system gives them, else on ordinary ones."""
    if size_bytes < WORTHWHILE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size_bytes, dtype=torch.uint8)
    mapping = mmap.mmap(-1, size_bytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    first = -whole.ctypes.data % HUGE_BYTES  # pages that are never touched cost nothing
    return torch.from_numpy(whole[first : first + size_bytes])
