"""The report as one HTML file: no script, no request, everything that others wrote escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from anabasis.report import words
from anabasis.report.ledger import MEANING, UNACCOUNTED
from anabasis.report.marks import GROUP_NAMES, curve_marks, curve_summary
from anabasis.report.model import Ledger, Report
from anabasis.report.svg import curve_svg
from anabasis.report.tables import Column, incident_rows, node_rows, rejection_rows, round_rows

MAX_ROWS = 300
"""Of one table: what a person scrolls through. The rest is counted, and the JSON form has all of it."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LEGEND_SHAPES = {
    "rollback": '<path d="M3 1h10l-5 9z"/>',
    "node": '<path d="M4 2l8 8m0 -8l-8 8"/>',
    "data": '<path d="M8 1l5 5l-5 5l-5 -5z"/>',
    "control": '<path d="M4 2h8v8h-8z"/>',
}


def render_html(report: Report) -> str:
    """A whole page: light and dark, for wide screens, phones and paper."""
    style = files("anabasis.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(
        [
            _head(report),
            _tiles(report),
            _curve(report),
            _ledger(report.ledger),
            _section("Incidents", _incidents(report)),
            _section("Nodes", _table(*node_rows(report, limit=MAX_ROWS), noun="node")) if report.nodes else "",
            _section("Rejected contributions", _table(*rejection_rows(report, limit=MAX_ROWS), noun="rejection"))
            if report.rejections
            else "",
            _outcome(report),
            _rounds(report),
            _problems(report),
            f'<p class="quiet">Schema {report.schema_version}, drawn up {words.moment(report.generated_at)} from '
            f"{_text(report.store_url)}</p>",
        ]
    )
    title = f"{_text(report.campaign)}: campaign report"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _text(value: str, *, limit: int = 600) -> str:
    return escape(words.plain(value, limit=limit))


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _head(report: Report) -> str:
    phase = report.phase or "phase not known"
    tone = {"completed": "good", "failed": "bad", "cancelled": "bad", "paused": "warn"}.get(report.phase, "quiet")
    title = f'<h1>{_text(report.campaign)}</h1><span class="phase {tone}">{_text(phase)}</span>'
    lines = [f'<div class="head">{title}</div>']
    setup = report.setup
    if setup:
        mode = ", deterministic" if setup.deterministic else ""
        lines.append(
            f'<p class="quiet">{_text(setup.recipe)} on {_text(setup.data_url)}, {words.plural(setup.slots, "slot")} '
            f"from {_text(setup.provider)}, seed {setup.seed}{mode}</p>"
        )
    waiting = f"waiting for {report.waiting_for}" if report.waiting_for else ""
    for text, kind in ((report.detail, ""), (waiting, "warn"), (report.failure, "bad")):
        if text:
            lines.append(f'<p class="{kind}">{_text(text)}</p>')
    return f"<header>{''.join(lines)}</header>"


def _tiles(report: Report) -> str:
    of = f" / {report.setup.target_rounds:,}" if report.setup else ""
    lasted = report.last_commit_at - report.started_at if report.last_commit_at and report.started_at else None
    tiles = [
        ("loss", words.loss(report.loss)),
        ("validation loss", words.loss(report.validation_loss)),
        ("rounds", f"{report.merged_rounds:,}{of}"),
        ("tokens", words.count(report.tokens_total)),
        ("tokens per second", words.count(report.tokens_per_second)),
        ("goodput", words.percent(report.ledger.goodput) if report.ledger else "not known"),
        ("to the last commit", words.duration(lasted)),
        ("cost", words.money(report.cost)),
        ("incidents", f"{report.incidents_total:,}"),
        ("rollbacks", f"{len(report.rollbacks):,}"),
    ]
    cells = "".join(f'<div class="tile"><dt>{name}</dt><dd>{escape(value)}</dd></div>' for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _curve(report: Report) -> str:
    wide = curve_svg(report, width=1000, height=400)
    if not wide:
        return _section("Loss", f'<p class="card">{curve_summary(report)}</p>')
    narrow = curve_svg(report, width=360, height=330)
    groups = {mark.group for mark in curve_marks(report)}
    legend = [_legend_entry('<line class="training" x1="0" x2="16" y1="6" y2="6"/>', "training")]
    if report.validation_loss is not None:
        legend.append(_legend_entry('<circle class="validation-dot" cx="8" cy="6" r="4"/>', "validation"))
    for group, name in GROUP_NAMES.items():
        if group in groups:
            legend.append(_legend_entry(f'<g class="mark {group}">{_LEGEND_SHAPES[group]}</g>', name))
    drawn = wide.replace('class="curve"', 'class="curve wide"', 1) + narrow.replace(
        'class="curve"', 'class="curve narrow"', 1
    )
    return _section(
        "Loss",
        f'<div class="card">{drawn}<div class="legend">{"".join(legend)}</div></div>'
        f'<p class="quiet">{escape(curve_summary(report))}</p>',
    )


def _legend_entry(shape: str, name: str) -> str:
    return f'<span><svg viewBox="0 0 16 12">{shape}</svg>{name}</span>'


def _ledger(ledger: Ledger | None) -> str:
    if ledger is None:
        return _section("Goodput", '<p class="card">Not known: no status, and no ledger record in the journal.</p>')
    percents = words.rounded_percents([share.percent for share in ledger.buckets])
    bar, rows = "", ""
    for share, percent in zip(ledger.buckets, percents, strict=True):
        # Only known names become class names.
        kind = share.bucket if share.bucket in MEANING else UNACCOUNTED
        name = _text(share.bucket)
        bar += f'<span class="{kind}" style="flex:{share.percent:.4f} 0 0" title="{name} {percent}"></span>'
        rows += (
            f'<tr><td><span class="key {kind}"></span>{name}</td><td class="n">{percent}</td>'
            f'<td class="n">{words.duration(share.seconds)}</td>'
            f'<td class="text quiet meaning">{MEANING.get(share.bucket, "")}</td></tr>'
        )
    head = (
        f"<p><b>{words.percent(ledger.goodput)}</b> of {words.duration(ledger.paid_node_seconds)} paid node time went "
        f"into committed training, over {words.plural(ledger.runs, 'run')} (from the {ledger.source}).</p>"
    )
    return _section(
        "Goodput", f'<div class="card ledger">{head}<div class="bar">{bar}</div><table>{rows}</table></div>'
    )


def _incidents(report: Report) -> str:
    if not report.incidents_total:
        return '<p class="card">None.</p>'
    note = "Times are after the last sign of progress, or after it was noticed where that is not known."
    return f'{_table(*incident_rows(report, limit=MAX_ROWS), noun="earlier incident")}<p class="quiet">{note}</p>'


def _outcome(report: Report) -> str:
    items = [
        f"Version {item.version} rolled back to version {item.restored}; {item.discarded} versions' updates undone."
        for item in report.rollbacks
    ]
    sound = [entry for entry in report.checkpoints if not entry.problem]
    if report.checkpoints:
        newest = f", the newest at version {sound[-1].version} ({words.size(sound[-1].size_bytes)})" if sound else ""
        items.append(f"{len(sound)} of {len(report.checkpoints)} checkpoint manifests are readable{newest}.")
    for model in report.models:
        items.append(
            f"Published as {words.plain(model.model)} {model.number} from version {model.campaign_version}, "
            f"validation loss {words.loss(model.validation_loss)}, {words.size(model.size_bytes)}."
        )
    audit = {
        "clean": "Sample audit: clean; every committed sample was committed exactly once.",
        "problems": f"Sample audit: {words.plural(len(report.audit.problems), 'problem')}.",
        "not_run": "Sample audit: not run, since nothing is committed.",
    }[report.audit.result]
    return _section("Outcome", _list([*items, audit, *report.audit.problems[:MAX_ROWS]]))


def _rounds(report: Report) -> str:
    if not report.rounds:
        return ""
    table = _table(*round_rows(report, limit=MAX_ROWS), noun="earlier round")
    return f"<details>\n<summary>Contributors of each round</summary>\n{table}\n</details>"


def _problems(report: Report) -> str:
    if not report.problems:
        return ""
    more = len(report.problems) - MAX_ROWS
    lines = report.problems[:MAX_ROWS] + ([f"and {more} more"] if more > 0 else [])
    return _section("Problems of this report", f'<div class="warn">{_list(lines)}</div>')


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _table(columns: list[Column], rows: list[list[str]], left: int, *, noun: str) -> str:
    classes = [f' class="{column.kind}"' if column.kind else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(column.name)}</th>" for column, kind in zip(columns, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    )
    more = f'<p class="more">and {words.plural(left, noun)} more: see the JSON form</p>' if left > 0 else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>{more}'
