from __future__ import annotations

import sys
from pathlib import Path

import pytest

from anabasis.errors import UserError
from anabasis.report import Report, build_report, render_png
from anabasis.storage.base import ObjectStore
from tests.report.samples import manifests, write_campaign


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_is_written_and_nothing_beside_it(eventful_report: Report, tmp_path: Path) -> None:
    assert is_png(render_png(eventful_report, tmp_path / "loss.png"))
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]


def test_names_are_not_read_as_mathematics(eventful_report: Report, tmp_path: Path) -> None:
    hostile = eventful_report.model_copy(update={"campaign": r"$\frac{$ \undefined", "phase": "$x_"})
    assert is_png(render_png(hostile, str(tmp_path / "loss.png")))


@pytest.mark.parametrize("count", [None, 0, 1, 2])
def test_short_campaigns_have_a_picture(store: ObjectStore, tmp_path: Path, count: int | None) -> None:
    write_campaign(store, manifests(count) if count is not None else [])
    assert is_png(render_png(build_report(store, "demo"), tmp_path / "loss.png"))


def test_without_matplotlib_the_error_names_the_command(
    eventful_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'anabasis\[report\]'"):
        render_png(eventful_report, tmp_path / "loss.png")


def test_a_path_that_cannot_be_written_is_an_error_of_one_line(eventful_report: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*missing.*; choose another path"):
        render_png(eventful_report, tmp_path / "missing" / "loss.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        render_png(eventful_report, tmp_path / "folder.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
