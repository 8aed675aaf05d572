"""A spec says everything that is wrong with it at once, by path, and nothing that is fed to it makes anything worse."""

from __future__ import annotations

import copy
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel

from anabasis.campaign.spec import MAX_NESTING, MAX_SPEC_BYTES, CampaignSpec, describe_spec, parse_spec
from anabasis.errors import InvalidSpec


def _problems(raw: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    return dict(caught.value.problems)


def test_only_the_name_is_needed() -> None:
    spec = parse_spec({"name": "first"})
    assert (spec.name, spec.recipe, spec.fleet.slots, spec.target.rounds) == ("first", "gpt", 4, 20)
    assert _problems({}) == {"name": "is required"}


def test_every_problem_is_told_at_once_by_its_path() -> None:
    problems = _problems(
        {
            "name": "Not A Name",
            "recipe": "not-a-path",
            "tagret": {"rounds": 3},
            "target": {"rounds": 0},
            "fleet": {"slots": -1, "slot": 3, "boot_timeout_seconds": 0},
            "training": {"betas": [0.9], "inner_lr": "fast", "compile": "maybe"},
            "budget": {"max_cost": -4},
            "rounds": {"quorum": 1.5},
            "health": None,
        }
    )
    assert set(problems) == {
        "name", "recipe", "tagret", "target.rounds", "fleet.slots", "fleet.slot", "fleet.boot_timeout_seconds",
        "training.betas.1", "training.inner_lr", "training.compile", "budget.max_cost", "rounds.quorum", "health",
    }  # fmt: skip
    assert problems["tagret"] == "unknown field; did you mean target?"
    assert problems["fleet.slot"] == "unknown field; did you mean slots?"
    assert problems["fleet.slots"].endswith("got -1")
    assert problems["training.inner_lr"].endswith('got "fast"')


def test_an_unknown_field_like_no_other_lists_the_known_ones() -> None:
    assert _problems({"name": "a", "target": {"xyzzy": 1}})["target.xyzzy"] == (
        "unknown field; known here: rounds, tokens, loss"
    )


def test_contradictions_between_fields_are_told_together_with_the_mend() -> None:
    problems = _problems(
        {
            "name": "a",
            "fleet": {"slots": 4},
            "data": {"partitions": 3},
            "rounds": {"min_contributors": 5, "min_deadline_seconds": 9, "max_deadline_seconds": 8},
            "training": {"inner_steps": 2, "min_inner_steps": 3, "betas": [0.9, 1.0]},
            "failures": {"backoff_seconds": 9, "max_backoff_seconds": 8},
        }
    )
    assert problems == {
        "rounds.min_contributors": "5 can never be met by 4 slots; use at most fleet.slots",
        "data.partitions": "3 is less than fleet.slots = 4; raise it",
        "training.min_inner_steps": "3 exceeds training.inner_steps = 2; lower it",
        "rounds.min_deadline_seconds": "9 exceeds rounds.max_deadline_seconds = 8; lower it",
        "failures.backoff_seconds": "exceeds failures.max_backoff_seconds; lower it",
        "training.betas": "(0.9, 1.0) must both be in [0, 1)",
    }


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ("name: a", "a string"), ([{"name": "a"}], "a list"), (7, "a number"), (0.5, "a number"), (True, "a boolean"),
        (None, "nothing"),
    ],
)  # fmt: skip
def test_what_is_no_object_at_all_is_told_so(raw: Any, named: str) -> None:
    assert _problems(raw) == {"(spec)": f"must be a JSON object with at least a name, not {named}"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    problems = _problems({"name": "a", "training": {"inner_lr": number}, "target": {"loss": number}})
    assert set(problems) == {"training.inner_lr", "target.loss"}


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a b", "a/b", "a_b", "é", "a\n", "a" * 64, 7, None, ["a"], {"a": 1}], ids=repr
)
def test_names_that_are_no_label_are_refused(name: Any) -> None:
    assert set(_problems({"name": name})) == {"name"}


@pytest.mark.parametrize("name", ["a", "7", "a-b", "a" * 63])
def test_names_that_are_a_label_are_taken(name: str) -> None:
    assert parse_spec({"name": name}).name == name


@pytest.mark.parametrize(
    "recipe", ["gpt; rm", "a:b:c", "../x", "a b", "1a", ":a", "a:", "a\n", "a.b:C\n", ""], ids=repr
)
def test_recipes_that_are_no_import_path_are_refused(recipe: str) -> None:
    assert set(_problems({"name": "a", "recipe": recipe})) == {"recipe"}


def test_a_spec_with_data_in_it_is_refused_by_its_size_whatever_else_is_wrong() -> None:
    problems = _problems({"name": "a", "recipe_options": {"table": "x" * 3_000_000}, "unknown": 1})
    assert list(problems) == ["(spec)"]
    assert f"at most {MAX_SPEC_BYTES}" in problems["(spec)"]
    assert len(problems["(spec)"]) < 200


def test_long_values_are_shown_cut() -> None:
    assert len(_problems({"name": "x" * 60_000})["name"]) < 300


def test_what_is_nested_too_deeply_or_in_itself_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    circle: dict[str, Any] = {"name": "a"}
    circle["recipe_options"] = circle
    for raw in ({"name": "a", "recipe_options": deep}, circle):
        assert _problems(raw) == {"(spec)": "is nested too deeply or refers to itself"}
    while deep:  # else its destructor recurses
        deep = deep.pop("a")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("inf"), "inf cannot be written as JSON; use a finite number"),
        (float("nan"), "nan cannot be written as JSON; use a finite number"),
        ("\ud800", "'\\ud800' is no valid Unicode; correct it"),
        (object(), "a value of type object cannot be written as JSON; use numbers, text, lists, objects"),
    ],
    ids=["inf", "nan", "surrogate", "object"],
)
def test_free_options_that_json_would_change_or_refuse_are_told_by_their_path(value: Any, told: str) -> None:
    raw = {"name": "a", "recipe_options": {"a": [0, {"b": value}]}, "fleet": {"provider_options": {"c": value}}}
    assert _problems(raw) == {"recipe_options.a.1.b": told, "fleet.provider_options.c": told}


def test_options_whose_keys_are_no_text_are_refused() -> None:
    assert _problems({"name": "a", "recipe_options": {"a": {7: 1}, "\ud800": 1}}) == {
        "recipe_options.a": "the key 7 is no text; use a string",
        "recipe_options": "the key '\\ud800' is no text; use a string",
    }


def test_options_that_no_reader_of_json_would_take_are_refused_by_their_depth() -> None:
    def nested(levels: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for _ in range(levels):
            options = {"a": options}
        return {"name": "a", "recipe_options": options}

    assert parse_spec(nested(MAX_NESTING)).model_dump_json()
    for levels in (MAX_NESTING + 1, 300):
        assert _problems(nested(levels)) == {"recipe_options": "is nested more than 100 levels deep; make it flatter"}


# --- anything at all --------------------------------------------------------------------------------------

_SECTIONS = {
    name: list(field.annotation.model_fields)
    for name, field in CampaignSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=20),  # lone surrogates too: JSON can escape them
    st.sampled_from([0, 1, -1, 0.5, "auto", 10**400]),
)
_KEYS = st.text(st.characters(), max_size=10)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=8,
)


def _section(name: str) -> st.SearchStrategy[Any]:
    known = st.sampled_from(_SECTIONS[name])
    return st.one_of(st.dictionaries(st.one_of(known, known, _KEYS), _JSON, max_size=4), _JSON)


_SPECS = st.one_of(
    _JSON,
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b-1", "C"])},
        optional={
            **{name: _section(name) for name in _SECTIONS},
            "recipe": st.one_of(_SCALARS, st.just("tiny")),
            "recipe_options": st.dictionaries(_KEYS, _JSON, max_size=3),
            "store": _JSON,
            "extra": _JSON,
        },
    ),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=_SPECS)
def test_anything_is_a_spec_or_an_invalid_one(raw: Any) -> None:
    before = copy.deepcopy(raw)
    problems: list[tuple[str, str]] | None = None
    spec: CampaignSpec | None = None
    try:
        spec = parse_spec(raw)
    except InvalidSpec as error:
        problems = error.problems
        str(error).encode()  # what cannot be encoded cannot be told
    if spec is None:
        assert problems
        assert all(path and text for path, text in problems)
    else:
        assert parse_spec(spec.model_dump(mode="json")) == spec
        assert parse_spec(json.loads(spec.model_dump_json())) == spec
    assert repr(raw) == repr(before), "what was given is left as it was"


def test_a_spec_survives_json_and_is_taken_as_it_is() -> None:
    spec = parse_spec(
        {"name": "a", "budget": {"max_cost": 1.5}, "training": {"betas": [0.8, 0.9]}, "recipe_options": {"k": [1]}}
    )
    assert parse_spec(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec
    assert parse_spec(spec) is spec


# --- what is told about it --------------------------------------------------------------------------------


def test_the_schema_documents_every_field_and_refuses_unknown_ones() -> None:
    schema = CampaignSpec.model_json_schema()
    assert schema["required"] == ["name"]
    json.dumps(schema)
    for model in [schema, *schema["$defs"].values()]:
        assert model["additionalProperties"] is False
        assert model["description"]
        for name, field in model["properties"].items():
            assert field.get("description") or "$ref" in field, f"{model['title']}.{name} says nothing"


def test_the_description_is_itself_a_spec_with_every_field_and_its_default() -> None:
    lines = [line for line in describe_spec().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: dict[str, Any] = {}
    section = found
    for line in lines:
        name, _, value = line.strip().partition(":")
        value = value.partition("  # ")[0].strip()
        if not line.startswith(" "):
            section = found
        if value:
            section[name] = "demo" if value == "demo" else json.loads(value)
        else:
            section = found[name] = {}
    assert parse_spec(found) == CampaignSpec(name="demo")
    assert set(found) == set(CampaignSpec.model_fields)
    assert {name: list(fields) for name, fields in found.items() if name in _SECTIONS} == _SECTIONS
