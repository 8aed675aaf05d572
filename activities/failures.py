"""From our errors to Temporal's: the type is the error's kind, and only what may be tried again is retryable."""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import ApplicationError

from anabasis.errors import AnabasisError, Throttled

MESSAGE_CHARACTERS = 3_000
"""The server cuts stored failures at 4 KiB; a traceback keeps its end, where the reason stands."""


def as_application_error(error: AnabasisError) -> ApplicationError:
    """The failure that an activity raises; `Throttled` carries the delay that was asked for."""
    text = str(error)
    if len(text) > MESSAGE_CHARACTERS:
        text = "…" + text[-MESSAGE_CHARACTERS:]
    delay = timedelta(seconds=error.retry_after_seconds) if isinstance(error, Throttled) else None
    return ApplicationError(text, type=error.kind, non_retryable=not error.retryable, next_retry_delay=delay)
