"""Preflight: every problem at once."""

from __future__ import annotations

from pathlib import Path

from anabasis.campaign.messages import PreflightRequest
from anabasis.training.preflight import preflight

PROVIDERS = frozenset({"local", "simulated"})


def paths(request: PreflightRequest) -> list[str]:
    return [item.path for item in preflight(request, providers=PROVIDERS, tick=lambda _: None).problems]


def test_what_is_right_has_no_problems(tmp_path: Path) -> None:
    request = PreflightRequest(
        recipe="tiny", data_url="python-stdlib", store=(tmp_path / "store").as_uri(), provider="local"
    )
    assert paths(request) == []


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    request = PreflightRequest(
        recipe="tiny",
        recipe_options={"wdth": 3},
        data_url=str(tmp_path / "missing.txt"),
        store=(blocked / "store").as_uri(),
        provider="moon",
    )
    assert paths(request) == ["recipe_options.wdth", "data.url", "store", "fleet.provider"]


def test_a_recipe_that_cannot_be_imported_is_a_problem_of_the_recipe() -> None:
    assert paths(PreflightRequest(recipe="no_such_module:Thing")) == ["recipe"]


def test_without_a_store_it_names_the_default() -> None:
    report = preflight(PreflightRequest(), providers=PROVIDERS, tick=lambda _: None)
    assert report.store_url.startswith("file://")
    assert report.problems == []
