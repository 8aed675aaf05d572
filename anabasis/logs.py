"""Structured logs: one line per event on stderr, as JSON for machines or in colour for people.

Everything goes through one pipeline: structlog's own loggers, the standard library's `logging` (boto3,
asyncio, the workflow logger) and Temporal's Rust core, which is forwarded to `logging` because it would
otherwise write to stdout, where the user's output belongs.

Fields bound with `structlog.contextvars` (`campaign`, `node`, `round`) appear on every line logged in that
context, by whatever library. Workflow code logs through `temporalio.workflow.logger`, which is silent during
replay; its `extra` fields and the workflow's identity become fields of the line.

Secrets never reach a line: values under secret-looking keys, secret-looking text, and the very values of the
process's secret environment variables are replaced.

Environment: `ANABASIS_LOG_FORMAT` (`json`, `console`, default `auto`: console on a terminal) and
`ANABASIS_LOG_LEVEL` (default `INFO`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

FORMAT_VARIABLE = "ANABASIS_LOG_FORMAT"
LEVEL_VARIABLE = "ANABASIS_LOG_LEVEL"

MAX_FIELD_CHARACTERS = 8_192
"""Longest text in one field. Temporal's core can put a whole workflow history into a single message."""

QUIET_LIBRARIES = ("asyncio", "boto3", "botocore", "filelock", "matplotlib", "s3transfer", "smart_open", "urllib3")
"""Libraries whose informational lines help nobody who runs a campaign: warnings and worse only."""

REDACTED = "[redacted]"

_SECRET_KEY = re.compile(
    r"password|passwd|passphrase|secret|credential|authorization|private_?key|api_?key|access_?key|"
    r"(^|[_\-.])token($|[_\-.])",  # `token`, `session_token`, but not `tokens`: those are trained on
    re.IGNORECASE,
)
_SECRET_TEXT = (
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?<=X-Amz-Signature=)[0-9A-Fa-f]+"),
    re.compile(r"(?<=X-Amz-Security-Token=)[^&\s]+"),
    re.compile(r"(?i)(?<=bearer )[\w\-.~+/]{8,}=*"),
    re.compile(
        r"(?i)(?:(?<=password=)|(?<=passwd=)|(?<=secret_access_key=)|(?<=session_token=)|(?<=api_key=)|"
        r"(?<=secret_access_key = )|(?<=session_token = ))[^\s&,;'\"]+"
    ),
)
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "TEMPORAL_API_KEY")
_SHORTEST_SECRET = 8
"""Shorter values of secret variables (`test`, `any`) are placeholders, and would blot out ordinary words."""


def configure(json: bool | None = None, level: str | int | None = None, *, stream: TextIO | None = None) -> None:
    """Set up logging for this process; calling it again replaces the earlier set-up.

    Args:
        json: JSON lines (True), console (False), or by `ANABASIS_LOG_FORMAT` and the terminal (None).
        level: name or number; None = `ANABASIS_LOG_LEVEL`, else INFO. Unknown names count as INFO.
        stream: where lines go; None = stderr.
    """
    output: TextIO = sys.stderr if stream is None else stream
    number = _level_number(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Loggers are few lines per second; not caching keeps a later configure() effective everywhere.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact,
                _renderer(_wants_json(json, output), output),
            ],
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _flatten_temporal, *_shared_processors()],
        )
    )
    handler.set_name("anabasis")
    root = logging.getLogger()
    for old in [one for one in root.handlers if one.get_name() == "anabasis"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """structlog processor: take secrets out of an event, and cut fields that are absurdly long."""
    variables = [value for name in _SECRET_VARIABLES if len(value := os.environ.get(name, "")) >= _SHORTEST_SECRET]
    return {key: _clean(key, value, variables) for key, value in event.items()}


def redact_text(text: str) -> str:
    """The text without what looks like a secret: for messages that are shown rather than logged."""
    return cast(str, redact(None, "", {"event": text})["event"])


def _clean(key: str, value: Any, variables: list[str]) -> Any:
    if key and _SECRET_KEY.search(key) and value not in (None, "", False, True):
        return REDACTED
    if isinstance(value, str):
        return _clean_text(value, variables)
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {name: _clean(str(name), item, variables) for name, item in fields.items()}
    if isinstance(value, list | tuple | set):
        return [_clean("", item, variables) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _clean_text(str(value), variables)


def _clean_text(text: str, variables: list[str]) -> str:
    for variable in variables:
        text = text.replace(variable, REDACTED)
    for pattern in _SECRET_TEXT:
        text = pattern.sub(REDACTED, text)
    if len(text) > MAX_FIELD_CHARACTERS:
        text = f"{text[:MAX_FIELD_CHARACTERS]}… ({len(text)} characters)"
    return text


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _flatten_temporal(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Lift what Temporal's loggers attach (dicts of ids, a core log object) into plain fields."""
    event.pop("temporal_log", None)  # its text is in the message already
    for name in ("temporal_workflow", "temporal_activity"):
        details = event.pop(name, None)
        if isinstance(details, Mapping):
            for key, value in cast("Mapping[str, Any]", details).items():
                event.setdefault(key, value)
    return event


def _renderer(json: bool, stream: TextIO) -> Processor:
    if json:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        # Rich tracebacks print the values of local variables, secrets among them.
        exception_formatter=structlog.dev.plain_traceback,
    )


def _wants_json(json: bool | None, stream: TextIO) -> bool:
    if json is not None:
        return json
    wanted = os.environ.get(FORMAT_VARIABLE, "auto").lower()
    if wanted in ("json", "console"):
        return wanted == "json"
    return not stream.isatty()


def _level_number(level: str | int | None) -> int:
    if isinstance(level, int):
        return level
    name = (level or os.environ.get(LEVEL_VARIABLE, "INFO")).upper()
    return logging.getLevelNamesMapping().get(name, logging.INFO)
