"""A campaign's status for people: the same picture for `status` (all of it) and `watch` (what fits the terminal)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anabasis.campaign.status import Bucket, CampaignStatus, Incident, NodeState, NodeStatus, Phase
from anabasis.cli.curves import Point
from anabasis.cli.pace import Pace
from anabasis.report import words
from anabasis.report.chart import Chart, Series

QUIET = "bright_black"

PHASE_STYLES: dict[Phase, str] = {
    Phase.TRAINING: "green",
    Phase.CHECKPOINTING: "green",
    Phase.PUBLISHING: "green",
    Phase.COMPLETED: "bold green",
    Phase.PAUSED: "yellow",
    Phase.ROLLING_BACK: "yellow",
    Phase.CANCELLED: "bold yellow",
    Phase.FAILED: "bold red",
}
_NODE_STYLES: dict[NodeState, str] = {
    NodeState.READY: "green",
    NodeState.UNKNOWN: "red",
    NodeState.DRAINING: "yellow",
    NodeState.LEAVING: "yellow",
}

CHART_ROWS, MIN_CHART_ROWS = 10, 4
CHART_FRAME_ROWS = 4
"""Axis, tick labels, legend and the blank line above a chart."""

MIN_NODE_ROWS = 4
"""Blank line, heading, one node, and how many more."""

_BARS = "▁▂▃▄▅▆▇█"

INCIDENT_ROWS = 6
BAR_COLUMNS = 24
FAILURE_LINES = 60
"""Of a recipe's traceback; the last ones say most."""

MIN_COLUMNS = 40
"""Of a chart or a table; narrower terminals get the lines alone."""

_TABLE_COLUMNS = 66
"""Of the node table before its free text."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to show. `now` is this machine's clock, in seconds since the epoch; `note` is a line for people."""

    status: CampaignStatus
    now: float
    pace: Pace = field(default_factory=Pace)
    points: Sequence[Point] = ()
    note: str = ""


def draw(picture: Picture, *, width: int, height: int | None = None) -> RenderableType:
    """Rows of at most `width` cells; at most `height` of them unless that is None."""
    if height is None:
        return Group(*_everything(picture, width=width))
    return Group(*_fitted(picture, width=width, height=height)[: max(1, height)])


def _everything(picture: Picture, *, width: int) -> list[RenderableType]:
    status = picture.status
    nodes = _nodes(picture, rows=len(status.nodes) + 1, width=width)
    incidents = _incidents(status, rows=INCIDENT_ROWS)
    chart = _chart(picture, width=width, rows=CHART_ROWS)
    return [*_head(picture, width=width), *chart, *nodes, *incidents, *_failure(status), *_note(picture)]


def _fitted(picture: Picture, *, width: int, height: int) -> list[RenderableType]:
    """Progress first, then the loss, then nodes; old incidents give way to all of them."""
    head = [_cut(line, width) for line in _head(picture, width=width)]
    note = [_cut(line, width) for line in _note(picture)]
    room = height - len(head) - len(note)
    rows = min(INCIDENT_ROWS, len(picture.status.incidents), max(1, room // 6))
    incidents = [_cut(line, width) for line in _incidents(picture.status, rows=rows)]
    room -= len(incidents)
    chart_rows = min(CHART_ROWS, room // 2 - CHART_FRAME_ROWS + 2, room - CHART_FRAME_ROWS - MIN_NODE_ROWS)
    chart: list[RenderableType] = []
    if chart_rows >= MIN_CHART_ROWS:
        chart = _chart(picture, width=width, rows=chart_rows)
    elif room >= 1:
        chart = [_cut(line, width) for line in _sparkline(picture, width=width)]
    room -= len(chart)
    nodes = _nodes(picture, rows=room - 2, width=width) if room >= MIN_NODE_ROWS else []
    return [*head, *chart, *nodes, *incidents, *note]


def rounds_done(status: CampaignStatus) -> int:
    """Merged rounds; of an older workflow, which does not tell, the version (which also counts rollbacks)."""
    return max(0, status.version) if status.merged_rounds is None else status.merged_rounds


def time_left(status: CampaignStatus, pace: Pace) -> float | None:
    """Seconds until the target in rounds, as things go now; None while it is not training."""
    if status.phase not in (Phase.TRAINING, Phase.CHECKPOINTING):
        return None
    return pace.seconds_left(max(0, status.target_rounds - rounds_done(status)))


def one_line(picture: Picture) -> str:
    """The state in one line, for logs and pipes."""
    status = picture.status
    parts = [
        f"{status.phase.value:<13}",
        f"round {rounds_done(status)}/{status.target_rounds}",
        f"loss {words.loss(status.loss)}",
        f"nodes {status.ready_nodes}/{status.desired_slots}",
        f"tokens {words.count(status.tokens_total)}",
    ]
    if picture.pace.tokens_per_second is not None:
        parts.append(f"{words.count(picture.pace.tokens_per_second)} tokens/s")
    left = time_left(status, picture.pace)
    if left is not None:
        parts.append(f"{words.duration(left)} left")
    if status.waiting_for:
        parts.append(words.plain(status.waiting_for, limit=160))
    return "  ".join(parts)


def incident_line(incident: Incident) -> str:
    """One failure in words: when, what, what was done about it, how long it took."""
    clock = datetime.fromtimestamp(incident.noticed_at).astimezone().strftime("%H:%M:%S")
    text = f"{clock} {words.plain(incident.text or incident.kind)}"
    if incident.decision:
        text += f" → {words.plain(incident.decision)}"
    if incident.mended_at is None:
        return f"{text}; not mended yet"
    began = incident.noticed_at if incident.happened_at is None else incident.happened_at
    return f"{text}; mended after {words.duration(max(0.0, incident.mended_at - began))}"


def _head(picture: Picture, *, width: int) -> list[Text]:
    status = picture.status
    style = PHASE_STYLES.get(status.phase, "cyan")
    done, target = rounds_done(status), status.target_rounds
    first = Text.assemble((status.name, "bold"), "  ", (status.phase.value.replace("_", " "), style), "  ")
    first.append(f"round {done} of {target}  " if target else f"round {done}  ")
    share = min(1.0, done / target) if target else 0.0
    bar = max(0, min(BAR_COLUMNS, width - 62))
    filled = round(share * bar)
    first.append("━" * filled, style="green").append("━" * (bar - filled), style=QUIET)
    first.append(f" {100 * share:.0f} %")
    left = time_left(status, picture.pace)
    if left is not None:
        first.append(f"  about {words.duration(left)} left")
    lines = [first, *_packed(_facts(picture), width), *_packed(_costs(picture), width, style=QUIET)]
    failure = status.failure.strip()
    for text, colour in (
        (status.waiting_for, "yellow"),
        (status.detail, QUIET),
        (failure.splitlines()[-1] if failure else "", "red"),
    ):
        if text:
            lines.append(Text(words.plain(text), style=colour))
    return lines


def _packed(facts: list[str], width: int, *, style: str = "") -> list[Text]:
    """Facts side by side, as many to a line as fit."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + len(fact) + 3 <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return [Text(line, style=style) for line in lines]


def _facts(picture: Picture) -> list[str]:
    status, pace = picture.status, picture.pace
    loss = f"loss {words.loss(status.loss)}"
    if status.validation_loss is not None:
        loss += f" (validation {words.loss(status.validation_loss)})"
    tokens = f"{words.count(status.tokens_total)} tokens"
    if status.target_tokens is not None:
        tokens = f"{words.count(status.tokens_total)} of {words.count(status.target_tokens)} tokens"
    if pace.tokens_per_second is not None and not status.phase.terminal:
        tokens += f" ({words.count(pace.tokens_per_second)}/s)"
    facts = [loss, tokens]
    if not status.phase.terminal:
        facts.append(f"{status.ready_nodes} of {words.plural(status.desired_slots, 'node')} ready")
    return facts


def _costs(picture: Picture) -> list[str]:
    status = picture.status
    end = status.now if status.phase.terminal and status.now else picture.now
    ran = "ran" if status.phase.terminal else "running"
    facts = [f"{ran} for {words.duration(max(0.0, end - status.started_at))}"] if status.started_at else []
    if status.paid_node_seconds:
        facts.append(f"{words.duration(status.paid_node_seconds)} of nodes paid")
        goodput = status.ledger.get(Bucket.TRAIN, 0.0) / status.paid_node_seconds
        facts.append(f"goodput {words.percent(min(1.0, goodput))}")
    if status.cost:
        facts.append(f"cost {words.money(status.cost)}")
    if status.checkpoint_version is not None:
        facts.append(f"checkpoint at version {status.checkpoint_version}")
    if status.incidents_total:
        facts.append(words.plural(status.incidents_total, "incident"))
    facts += [f"published as {model} {number}" for model, number in status.published.items()]
    return facts


def _chart(picture: Picture, *, width: int, rows: int) -> list[RenderableType]:
    segments: list[list[tuple[float, float]]] = [[]]
    for point in picture.points:
        if point.kind == "rollback":
            segments.append([])
        elif point.loss is not None:
            segments[-1].append((float(point.version), point.loss))
    segments = [segment for segment in segments if segment]
    if width < MIN_COLUMNS or sum(len(segment) for segment in segments) < 2:
        return []
    measured = [(float(p.version), p.validation_loss) for p in picture.points if p.validation_loss is not None]
    series = [Series("training loss", segments, "cyan")]
    if measured:
        series.append(Series("validation loss", [measured], "magenta", marker="•"))
    return [Text(""), *Chart(series).lines(width=min(width, 120), height=rows)]


def _sparkline(picture: Picture, *, width: int) -> list[Text]:
    losses = [point.loss for point in picture.points if point.loss is not None]
    if len(losses) < 2:
        return []
    columns = max(1, min(len(losses), width - 24))
    shown = [losses[round(index * (len(losses) - 1) / max(1, columns - 1))] for index in range(columns)]
    low, high = min(shown), max(shown)
    steps = "".join(_BARS[round((value - low) / (high - low or 1.0) * (len(_BARS) - 1))] for value in shown)
    return [Text.assemble("loss ", f"{high:.3f} ", (steps, "cyan"), f" {low:.3f}")]


def _nodes(picture: Picture, *, rows: int, width: int) -> list[RenderableType]:
    present = [node for node in picture.status.nodes if node.state is not NodeState.GONE]
    if not present or rows < 2 or width < MIN_COLUMNS:
        return []
    present.sort(key=lambda node: (node.slot, node.attempt))
    hidden = 0
    if len(present) > rows:
        # The ones that are not simply ready are the interesting ones.
        shown = sorted(present, key=lambda node: (node.state is NodeState.READY, node.slot))[: rows - 1]
        hidden = len(present) - len(shown)
        present = sorted(shown, key=lambda node: (node.slot, node.attempt))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("node", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("rounds", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    if width >= 70:
        table.add_column("for", justify="right", no_wrap=True)
        table.add_column("provider", no_wrap=True)
    room = width - _TABLE_COLUMNS
    if room >= 10:
        table.add_column("", no_wrap=True)
    for node in present:
        table.add_row(*_node_cells(node, now=picture.now, room=max(1, room))[: len(table.columns)])
    return [Text(""), table, *([Text(f"… and {words.plural(hidden, 'more node')}", style=QUIET)] if hidden else [])]


def _node_cells(node: NodeStatus, *, now: float, room: int) -> list[str | Text]:
    return [
        f"{node.slot}-{node.attempt}",
        Text(node.state.value, style=_NODE_STYLES.get(node.state, "cyan")),
        f"{node.rounds}",
        words.count(node.tokens),
        words.duration(max(0.0, float(round(now - node.since)))),
        words.plain(node.provider),
        Text(words.plain(node.detail, limit=room), style=QUIET),
    ]


def _incidents(status: CampaignStatus, *, rows: int) -> list[Text]:
    newest = sorted(status.incidents, key=lambda one: one.sequence)[-rows:] if rows > 0 else []
    if not newest:
        return []
    lines = [Text(incident_line(one), style="yellow" if one.mended_at is None else "") for one in newest]
    hidden = status.incidents_total - len(newest)
    heading = "Incidents" + (f" (and {hidden} earlier)" if hidden > 0 else "")
    return [Text(""), Text(heading, style=QUIET), *lines]


def _failure(status: CampaignStatus) -> list[Text]:
    lines = status.failure.strip().splitlines()
    if len(lines) < 2:  # the head has said it all
        return []
    return [Text(""), *(Text(_shown(line), style="red") for line in lines[-FAILURE_LINES:])]


def _shown(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * indent + words.plain(line)


def _note(picture: Picture) -> list[Text]:
    return [Text(""), Text(picture.note, style=QUIET)] if picture.note else []


def _cut(text: Text, width: int) -> Text:
    text.truncate(max(1, width), overflow="ellipsis")
    text.no_wrap = True
    return text


TABLE_BOX = box.SIMPLE_HEAD
"""Of listings (`list`, `models`)."""
