"""Reports of campaigns: read from the store (`build_report`), rendered for terminals, browsers and pictures.

Renderings are imported when they are called: rich comes with the extra `cli`, matplotlib with `report`.
"""

from __future__ import annotations

from pathlib import Path

from anabasis.report.build import build_report
from anabasis.report.compare import Comparison, compare_losses
from anabasis.report.model import Report

__all__ = [
    "Comparison",
    "Report",
    "build_report",
    "compare_losses",
    "render_comparison_png",
    "render_comparison_terminal",
    "render_html",
    "render_png",
    "render_terminal",
]


def render_terminal(report: Report, *, width: int = 100, color: bool = True) -> str:
    """Text with (`color`) or without ANSI codes, lines at most `width` cells (60 at least)."""
    from anabasis.report.terminal import render_terminal as render

    return render(report, width=width, color=color)


def render_html(report: Report) -> str:
    """One HTML file that needs nothing else: no script, no font, no request."""
    from anabasis.report.page import render_html as render

    return render(report)


def render_png(report: Report, path: Path | str) -> Path:
    """The loss curve with its marks, and the ledger, as a picture. Raises `UserError` without matplotlib."""
    from anabasis.report.picture import render_png as render

    return render(report, path)


def render_comparison_terminal(comparison: Comparison, *, width: int = 100, color: bool = True) -> str:
    """Two curves in one terminal picture, and what the comparison says in words."""
    from anabasis.report.compare_terminal import render_comparison_terminal as render

    return render(comparison, width=width, color=color)


def render_comparison_png(comparison: Comparison, path: Path | str) -> Path:
    """Two curves in one picture. Raises `UserError` without matplotlib."""
    from anabasis.report.picture import render_comparison_png as render

    return render(comparison, path)
