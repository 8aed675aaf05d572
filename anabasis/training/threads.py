"""Threads that share out torch's work, each of which computes alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def single_threaded_pool(threads: int, *, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads in which torch starts none of its own. Torch keeps that setting for threads to come: it is put back."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
