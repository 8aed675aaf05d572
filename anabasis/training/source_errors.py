"""What a failure to read a data source means: a mistake in the spec, or an outage that may pass.

Sources are opened through smart-open, whose backends raise what their SDKs raise. SDKs are looked at by name,
so that none has to be installed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from anabasis.errors import AnabasisError, InvalidSpec, StoreDenied, StoreUnavailable

_MISTAKES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)

_DAMAGED = frozenset({"BadGzipFile", "EOFError", "LZMAError", "ZstdError", "zlib.error", "error"})
"""Names of what decompressors raise; plain `error` is zlib's."""

_OUTAGES = frozenset(
    {
        "ConnectionError",
        "ConnectTimeout",
        "ReadTimeout",
        "Timeout",
        "ChunkedEncodingError",
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionClosedError",
        "ResponseStreamingError",
        "IncompleteRead",
        "ProtocolError",
    }
)
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_ERRNO = frozenset({errno.EIO, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAGAIN})


def explain_failure(error: Exception, *, url: str, outage_is_final: bool) -> AnabasisError:
    """The project's error for a failure to read `url`.

    Args:
        outage_is_final: at preflight, a server that does not answer is reported as the spec's problem.

    Returns:
        InvalidSpec (path `data.url`) or StoreUnavailable.
    """
    if isinstance(error, AnabasisError) and not isinstance(error, StoreDenied):
        return error
    if _may_pass(error) and not outage_is_final:
        return StoreUnavailable(f"data source {url!r} does not answer: {_first_line(error)}")
    return InvalidSpec([("data.url", f"{url!r} {_reason(error)}")])


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "cannot be found"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    if isinstance(error, ImportError):
        scheme = getattr(error, "msg", "").split("use the ")[-1].split(" ")[0]
        return f"needs more software: pip install 'smart_open[{scheme}]'"
    if isinstance(error, NotImplementedError):
        return "has a scheme that is not known; use file, http, https, s3, gs or a path"
    if type(error).__name__ in _DAMAGED:
        return f"is damaged or not compressed as its name says ({_first_line(error)})"
    return f"cannot be read: {_first_line(error)}"


def _may_pass(error: Exception) -> bool:
    if isinstance(error, (*_MISTAKES, ImportError)):
        return False
    for cause in _causes(error):
        status = _status(cause)
        if status is not None:
            return status in _PASSING_STATUS
        if type(cause).__name__ in _OUTAGES or isinstance(cause, (ConnectionError, TimeoutError)):
            return True
        if isinstance(cause, OSError) and cause.errno in _PASSING_ERRNO:
            return True
    return False


def _status(error: BaseException) -> int | None:
    """HTTP status in the errors of requests (`response.status_code`) and botocore (`response` dictionary)."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
