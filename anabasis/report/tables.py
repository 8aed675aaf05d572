"""The report's tables as rows of text, the same for every rendering."""

from __future__ import annotations

from typing import Literal, NamedTuple

from anabasis.report import words
from anabasis.report.model import Report


class Column(NamedTuple):
    """`kind`: `n` for numbers (right-aligned), `text` for long text that may wrap."""

    name: str
    kind: Literal["", "n", "text"] = ""


Rows = tuple[list[Column], list[list[str]], int]
"""Columns, rows, and how many rows were left out."""


def node_rows(report: Report, *, limit: int) -> Rows:
    """The nodes that committed the most tokens first."""
    columns = [
        Column("node"),
        *(Column(name, "n") for name in ("rounds", "tokens", "share", "train", "sync", "wait", "sent")),
        Column("state"),
    ]
    ordered = sorted(report.nodes, key=lambda node: (-node.tokens, node.slot, node.attempt))
    rows = [
        [
            node.name,
            f"{node.rounds:,}",
            words.count(node.tokens),
            words.percent(node.share),
            words.duration(node.train_seconds),
            words.duration(node.sync_seconds),
            words.duration(node.wait_seconds),
            words.size(node.uploaded_bytes),
            words.plain(node.state) or words.UNKNOWN,
        ]
        for node in ordered[:limit]
    ]
    return columns, rows, max(0, len(ordered) - limit)


def incident_rows(report: Report, *, limit: int) -> Rows:
    """The newest incidents, in order."""
    columns = [
        Column("#", "n"),
        Column("kind"),
        Column("node"),
        Column("noticed", "n"),
        Column("decided", "n"),
        Column("mended", "n"),
        Column("what happened", "text"),
        Column("decision", "text"),
    ]
    rows = [
        [
            str(incident.sequence),
            words.plain(incident.kind, limit=40),
            "" if incident.slot is None else f"{incident.slot}-{incident.attempt}",
            words.duration(incident.noticed_after),
            words.duration(incident.decided_after),
            "open" if incident.mended_at is None else words.duration(incident.mended_after),
            words.plain(incident.text, limit=300),
            words.plain(incident.decision, limit=200),
        ]
        for incident in report.incidents[-limit:]
    ]
    return columns, rows, max(0, len(report.incidents) - limit)


def rejection_rows(report: Report, *, limit: int) -> Rows:
    """The newest rejections, in order."""
    columns = [Column("version", "n"), Column("node"), Column("reason"), Column("detail", "text")]
    rows = [
        [str(item.version), f"{item.slot}-{item.attempt}", item.reason, words.plain(item.detail, limit=200)]
        for item in report.rejections[-limit:]
    ]
    return columns, rows, max(0, len(report.rejections) - limit)


def round_rows(report: Report, *, limit: int) -> Rows:
    """The newest rounds, in order."""
    columns = [
        Column("version", "n"),
        Column("contributors", "text"),
        Column("missing slots"),
        Column("rejected"),
        Column("closed because"),
    ]
    rows = [
        [
            str(members.version),
            _some(members.contributors),
            _some([str(slot) for slot in members.missing_slots]),
            _some(members.rejected),
            words.plain(members.close_reason, limit=80),
        ]
        for members in report.rounds[-limit:]
    ]
    return columns, rows, max(0, len(report.rounds) - limit)


def _some(names: list[str], *, limit: int = 24) -> str:
    """The first few names; hundreds of nodes in one cell help nobody."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
