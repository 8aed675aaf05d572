"""The list of providers, and the options that they understand."""

from __future__ import annotations

import pytest

from activities.providers.base import check_provider, get_provider, known_providers
from activities.providers.local import LocalProvider
from anabasis.errors import InvalidSpec


def test_every_known_provider_can_be_had_without_options() -> None:
    for name in known_providers():
        assert get_provider(name).name == name
        assert check_provider(name, {}) == []


def test_options_reach_the_provider() -> None:
    provider = get_provider("local", {"max_nodes": 3, "nice": 0})
    assert isinstance(provider, LocalProvider)
    assert (provider.options.max_nodes, provider.options.nice) == (3, 0)


def test_an_unknown_provider_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InvalidSpec) as raised:
        get_provider("loocal")
    ((path, text),) = raised.value.problems
    assert path == "fleet.provider"
    assert "'loocal'" in text
    assert "local, simulated" in text


def test_every_bad_option_is_reported_by_its_path() -> None:
    problems = {problem.path: problem.text for problem in check_provider("local", {"max_nodes": 0, "speed": 1})}
    assert set(problems) == {"fleet.provider_options.max_nodes", "fleet.provider_options.speed"}
    assert "got 0" in problems["fleet.provider_options.max_nodes"]
    assert "known: " in problems["fleet.provider_options.speed"]


def test_numbers_that_are_none_are_refused() -> None:
    (problem,) = check_provider("simulated", {"steps_per_second": float("nan")})
    assert problem.path == "fleet.provider_options.steps_per_second"
