"""What every long-lived process of ours does around its work: logs, signals, and a certain end.

    async def serve(stop: asyncio.Event) -> None:
        client = await connect(patience_seconds=60)
        async with Worker(client, …, on_fatal_error=exit_on_fatal_error):
            await stop.wait()

    if __name__ == "__main__":
        run_worker(serve)

SIGTERM, SIGINT or SIGHUP (the terminal was closed) sets `stop`; a second one ends the process at once. A worker that
has not returned `stop_seconds` after the first is ended by a watchdog thread: the SDK's shutdown can hang when its
connection is gone, and a process that will not die keeps its place from being filled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from anabasis import logs
from anabasis.errors import AnabasisError
from workers.connect import exit_cleanly

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_FATAL = 3
"""The worker cannot go on (its server refuses it): whoever supervises it should start it anew."""
EXIT_STUCK = 4
"""It was told to stop and did not."""
EXIT_SIGNALLED_TWICE = 130

STOP_SECONDS = 30.0
"""From the first signal to the watchdog: an activity's own graceful end (10 s at most) and some room."""

_log = structlog.get_logger(__name__)


def run_worker(
    serve: Callable[[asyncio.Event], Awaitable[None]],
    *,
    stop_seconds: float = STOP_SECONDS,
    json_logs: bool | None = None,
) -> NoReturn:
    """Run `serve(stop)` until it returns, and leave the process. Never returns; call it from the main thread."""
    logs.configure(json_logs)
    try:
        asyncio.run(_until_stopped(serve, stop_seconds))
        code = EXIT_OK
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else EXIT_FAILED
    except AnabasisError as error:
        _log.error("worker_failed", error=error.kind, reason=str(error))
        code = EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = EXIT_SIGNALLED_TWICE
    except BaseException:  # the end of the process: whatever it was must be in the log
        _log.exception("worker_crashed")
        code = EXIT_FAILED
    exit_cleanly(code)


async def exit_on_fatal_error(error: BaseException) -> None:
    """For `Worker(on_fatal_error=…)`: end the process, since `Worker.run` may not return after a fatal error."""
    _log.critical("worker_fatal", error=type(error).__name__, reason=str(error))
    sys.stderr.flush()
    os._exit(EXIT_FATAL)


def install_stop_signals(stop: asyncio.Event, *, stop_seconds: float) -> None:
    """On the running loop: the first SIGTERM, SIGINT or SIGHUP sets `stop` and arms the watchdog, the next exits."""
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(EXIT_SIGNALLED_TWICE)
        _log.info("stopping", signal=number.name)
        stop.set()
        _arm_watchdog(stop_seconds)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started with nohup: closing the terminal is not meant to stop it
        loop.add_signal_handler(number, on_signal, number)


async def _until_stopped(serve: Callable[[asyncio.Event], Awaitable[None]], stop_seconds: float) -> None:
    stop = asyncio.Event()
    install_stop_signals(stop, stop_seconds=stop_seconds)
    await serve(stop)


def _arm_watchdog(seconds: float) -> None:
    def give_up() -> None:
        with suppress(Exception):  # nothing may keep this thread from the last line
            _log.critical("worker_stuck", seconds=seconds)
            sys.stderr.flush()
        os._exit(EXIT_STUCK)

    watchdog = threading.Timer(seconds, give_up)
    watchdog.daemon = True
    watchdog.start()
