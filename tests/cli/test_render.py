"""What `status` and `watch` draw, for every phase and every size of terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anabasis.campaign.status import Bucket, CampaignStatus, Incident, NodeState, NodeStatus, Phase
from anabasis.cli.curves import Point
from anabasis.cli.pace import Pace
from anabasis.cli.render import Picture, draw, incident_line, one_line, time_left

NOW = 1_800_000_000.0


def _status(**changes: object) -> CampaignStatus:
    nodes = [
        NodeStatus(
            slot=slot,
            attempt=1,
            nonce="n",
            state=NodeState.UNKNOWN if slot == 17 else NodeState.READY,
            provider="local",
            since=NOW - 60 * slot,
            rounds=slot,
            tokens=slot * 1_000,
            detail="the provider does not answer" if slot == 17 else "",
        )
        for slot in range(20)
    ]
    fields: dict[str, object] = {
        "name": "demo", "phase": Phase.TRAINING, "version": 12, "merged_rounds": 11, "target_rounds": 50, "loss": 3.25,
        "validation_loss": 3.4, "tokens_total": 1_234_567, "desired_slots": 20, "ready_nodes": 19, "nodes": nodes,
        "checkpoint_version": 10, "started_at": NOW - 600, "now": NOW, "paid_node_seconds": 1_000.0, "cost": 1.5,
        "ledger": {Bucket.TRAIN: 800.0, Bucket.WAIT: 200.0}, "incidents": [_incident(n) for n in range(1, 9)],
        "incidents_total": 30,
    }  # fmt: skip
    return CampaignStatus.model_validate({**fields, **changes})


def _incident(sequence: int, **changes: object) -> Incident:
    fields: dict[str, object] = {
        "sequence": sequence, "kind": "lost", "text": f"node {sequence}-1 went silent", "decision": "replaced",
        "noticed_at": NOW - 100 + sequence, "happened_at": NOW - 105 + sequence, "mended_at": NOW - 90 + sequence,
    }  # fmt: skip
    return Incident.model_validate({**fields, **changes})


def _points(count: int) -> list[Point]:
    return [
        Point(version=n, kind="merge", loss=2 + 5 / (1 + n), validation_loss=None, tokens=n, rounds=n, at=NOW)
        for n in range(count)
    ]


def _drawn(picture: Picture, *, width: int, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(draw(picture, width=width, height=height))
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


PICTURE = Picture(_status(), NOW, Pace(tokens_per_second=1_500.0, seconds_per_round=4.0), _points(40), note="a note")


def test_everything_is_there_when_there_is_room() -> None:
    text = "\n".join(_drawn(PICTURE, width=120))
    for part in (
        "demo  training  round 11 of 50",
        "about 2 m 36 s left",
        "loss 3.2500 (validation 3.4000)",
        "1.2 M tokens (1,500/s)",
        "19 of 20 nodes ready",
        "running for 10 m 00 s",
        "goodput 80.0 %",
        "cost 1.50",
        "checkpoint at version 10",
        "30 incidents",
        "the provider does not answer",
        "Incidents (and 24 earlier)",
        "node 8-1 went silent → replaced; mended after 15.0 s",
        "a note",
        "training loss",
    ):
        assert part in text, part
    assert sum(line.lstrip().startswith(tuple(f"{slot}-1 " for slot in range(20))) for line in text.splitlines()) == 20


@given(width=st.integers(1, 200), height=st.integers(1, 80))
def test_it_fits_every_terminal(width: int, height: int) -> None:
    lines = _drawn(PICTURE, width=width, height=height)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    assert lines[0].startswith("demo"[:width]) or width < 6


def test_a_small_terminal_shows_the_nodes_that_need_attention_first() -> None:
    lines = _drawn(PICTURE, width=80, height=16)
    assert any(line.startswith("17-1") for line in lines)
    assert any("more nodes" in line for line in lines)
    assert any("▁" in line or "⠁" <= line.strip("│ ┤0123456789")[:1] <= "⣿" for line in lines)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_shown(phase: Phase) -> None:
    lines = _drawn(Picture(_status(phase=phase), NOW), width=100)
    assert phase.value.replace("_", " ") in lines[0]
    assert phase.value in one_line(Picture(_status(phase=phase), NOW))


def test_an_empty_status_can_be_shown() -> None:
    bare = Picture(CampaignStatus(name="demo", phase=Phase.VALIDATING), NOW)
    assert _drawn(bare, width=80)[0].startswith("demo  validating")
    assert "–" in one_line(bare)


def test_a_campaign_that_ended_tells_how_long_it_ran_and_why_it_failed() -> None:
    failure = 'Traceback (most recent call last):\n  File "recipe.py", line 3, in loss\nValueError: shapes do not match'
    status = _status(phase=Phase.FAILED, failure=failure, nodes=[], now=NOW - 300)
    lines = _drawn(Picture(status, NOW), width=100)
    assert "ran for 5 m 00 s" in "\n".join(lines)
    assert lines.count("ValueError: shapes do not match") == 2  # at the top, and at the end of the traceback
    assert '  File "recipe.py", line 3, in loss' in lines


def test_time_left_is_told_only_while_it_trains() -> None:
    pace = Pace(seconds_per_round=2.0)
    assert time_left(_status(), pace) == 78.0
    assert time_left(_status(phase=Phase.PAUSED), pace) is None
    assert time_left(_status(merged_rounds=60), pace) == 0.0


def test_foreign_text_cannot_move_the_cursor() -> None:
    status = _status(waiting_for="\x1b[2Jgone", failure="\x1b[31mred", incidents=[_incident(1, text="a\nb\x07")])
    text = "\n".join(_drawn(Picture(status, NOW), width=100))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\x1b" not in one_line(Picture(status, NOW))


def test_open_incidents_say_so() -> None:
    assert incident_line(_incident(1, mended_at=None)).endswith("node 1-1 went silent → replaced; not mended yet")
    assert incident_line(_incident(1, happened_at=None)).endswith("mended after 10.0 s")
