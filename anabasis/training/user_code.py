"""The border between our code and the recipe's: what the recipe raises is the user's to mend."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from anabasis.errors import AnabasisError, UserCodeError

MAX_TRACEBACK_CHARACTERS = 16_000
"""The end of the traceback is what helps; it travels in an activity failure, which must stay small."""


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Within it, any exception but our own becomes `UserCodeError`, with the original as its cause.

    Args:
        what: the method of the recipe that is being called.
    """
    try:
        yield
    except AnabasisError:
        raise
    except Exception as error:  # a recipe may raise anything, running out of memory included
        text = str(error).strip().splitlines() or [""]
        raise UserCodeError(f"{what} raised {type(error).__name__}: {text[0][:500]}") from error


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception and its causes; its end, when it is long."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else "…" + text[-MAX_TRACEBACK_CHARACTERS:]
