"""Waiting for conditions, with a deadline; tests never sleep for luck."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def wait_until(
    predicate: Callable[[], Awaitable[T]] | Callable[[], T], *, seconds: float, every: float = 0.05, what: str = ""
) -> T:
    """Await until the predicate (plain or async) is true, and return its value.

    An exception in the predicate is raised at once. AssertionError names `what` (or the predicate) and its last value.
    """
    deadline = time.monotonic() + seconds
    while True:
        outcome = predicate()
        value = cast("T", await outcome if inspect.isawaitable(outcome) else outcome)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_failure(predicate, value, seconds, what))
        await asyncio.sleep(every)


def wait_until_sync(predicate: Callable[[], T], *, seconds: float, every: float = 0.05, what: str = "") -> T:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_failure(predicate, value, seconds, what))
        time.sleep(every)


def _failure(predicate: object, value: object, seconds: float, what: str) -> str:
    name = what or getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {seconds:g} s: {name} (last value: {value!r})"
