from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from anabasis.campaign.records import keys
from anabasis.report import Report, build_report, render_terminal
from anabasis.storage.base import ObjectStore
from tests.report.samples import START, incident, manifests, write_campaign

ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def test_it_says_what_matters(eventful_report: Report) -> None:
    text = render_terminal(eventful_report, color=False)
    for said in (
        "campaign demo  completed",
        "round 59 of 60, version 60, loss 2.1",
        "Goodput 70.0 % of 16 m 40 s",
        "train    70.0 %",
        "Contributors per round from 3 to 4",
        "Incidents (5)",
        "corrupt_contribution",
        "Rollback  version 30 restores 27 (2 discarded)",
        "Sample audit  clean",
        "R rollback",
    ):
        assert said in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_asked(eventful_report: Report, width: int) -> None:
    lines = render_terminal(eventful_report, width=width, color=False).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_colour_only_adds_codes(eventful_report: Report) -> None:
    plain, coloured = (render_terminal(eventful_report, color=color) for color in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert stripped == plain.splitlines()


def test_the_environment_does_not_change_it(eventful_report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = render_terminal(eventful_report, color=True)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "20")):
        monkeypatch.setenv(name, value)
    assert render_terminal(eventful_report, color=True) == expected


def test_an_empty_campaign_has_a_page(store: ObjectStore) -> None:
    write_campaign(store, [])
    text = render_terminal(build_report(store, "demo"), color=False)
    assert "no loss has been committed yet" in text
    assert "Goodput not known" in text
    assert "Sample audit  not run" in text


def test_one_version_has_a_page(store: ObjectStore) -> None:
    write_campaign(store, manifests(1))
    assert "round 1 of 60, version 1" in render_terminal(build_report(store, "demo"), color=False)


def test_hostile_text_moves_no_cursor_and_is_not_markup(store: ObjectStore) -> None:
    hostile = incident(1, at=START, kind="\x1b]0;owned\x07", text="\x1b[2J[bold red]gotcha[/] :smile:\r\nnext")
    campaign = write_campaign(store, manifests(3), journal=[[hostile.model_dump(mode="json")]])
    campaign.put("versions/[red]x.json", b"x")
    text = render_terminal(build_report(store, "demo"), width=160, color=True)
    assert set(re.findall("\x1b.", text)) == {"\x1b["}
    assert "[bold red]gotcha[/] :smile: next" in ESCAPE.sub("", text)
    assert "\x07" not in text


def test_what_is_left_out_is_counted(store: ObjectStore) -> None:
    entries: list[object] = [incident(n, at=START + n).model_dump(mode="json") for n in range(1, 40)]
    write_campaign(store, manifests(2, slots=20), journal=[entries])
    text = render_terminal(build_report(store, "demo"), color=False)
    assert "and 8 nodes more" in text
    assert "and 24 earlier incidents more" in text


def test_problems_are_shown(store: ObjectStore) -> None:
    campaign = write_campaign(store, manifests(4))
    campaign.put(keys.version(2), b"torn")
    text = render_terminal(build_report(store, "demo"), color=False)
    assert "Problems of this report" in text
    assert "versions/000002.json" in text
