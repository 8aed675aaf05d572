from __future__ import annotations

from typing import Any

import pytest
import torch

from anabasis.campaign.records import DatasetManifest
from anabasis.campaign.spec import parse_spec
from anabasis.errors import InvalidSpec, UserCodeError
from anabasis.training.initial import initial_model
from anabasis.training.parameters import fingerprint, flatten, layout_of
from anabasis.training.recipe import Recipe, load_recipe

torch.set_num_threads(1)

SMALL = {"layers": 2, "width": 16, "heads": 2}


def dataset(**changes: Any) -> DatasetManifest:
    values: dict[str, Any] = {
        "source": "x", "source_bytes": 0, "source_hash": "", "tokenizer": "bytes", "vocabulary_size": 40,
        "dtype": "uint16", "tokens": 0, "sequence_length": 12, "samples": 0, "validation_samples": 0, "shards": [],
    }  # fmt: skip
    return DatasetManifest.model_validate(values | changes)


@pytest.mark.parametrize("options", [{}, {"positions": "learned"}, {"tied": False}, {"dropout": 0.1}])
def test_a_gpt_learns_a_repeating_text(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    recipe = load_recipe("gpt", {**SMALL, **options})
    model = recipe.build_model(40, 12)
    batch = torch.arange(13).repeat(8, 1) % 7
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = recipe.loss(model, batch).item()
    for _ in range(40):
        optimizer.zero_grad()
        recipe.loss(model, batch).backward()
        optimizer.step()
    assert recipe.loss(model, batch).item() < first / 4


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_no_token_sees_what_follows_it(positions: str) -> None:
    model = load_recipe("gpt", {**SMALL, "positions": positions}).build_model(40, 12).eval()
    tokens = torch.randint(0, 40, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 40
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :8], after[:, :8], atol=1e-6)
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-4)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_places_matter(positions: str) -> None:
    """The same tokens in another order give the last place another prediction."""
    model = load_recipe("gpt", {**SMALL, "positions": positions}).build_model(40, 12).eval()
    with torch.no_grad():
        one, two = model(torch.tensor([[1, 2, 3, 4]])), model(torch.tensor([[2, 1, 3, 4]]))
    assert not torch.allclose(one[:, -1], two[:, -1], atol=1e-6)


def test_a_tied_matrix_is_sent_once() -> None:
    tied = load_recipe("gpt", SMALL).build_model(40, 12)
    untied = load_recipe("gpt", {**SMALL, "tied": False}).build_model(40, 12)
    assert flatten(untied).numel() - flatten(tied).numel() == 40 * 16
    assert not any("cos" in entry.name for entry in layout_of(tied))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"width": 10, "heads": 3}, "recipe_options.width"),
        ({"width": 9, "heads": 3}, "recipe_options.width"),
        ({"heads": 0}, "recipe_options.heads"),
        ({"dropout": 1}, "recipe_options.dropout"),
        ({"dropout": "much"}, "recipe_options.dropout"),
        ({"positions": "sinus"}, "recipe_options.positions"),
        ({"layers": True}, "recipe_options.layers"),
    ],
)
def test_impossible_shapes_are_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_recipe("gpt", options)
    assert caught.value.problems[0][0] == path


def test_the_initial_model_depends_on_the_seed_alone() -> None:
    def initial(seed: int) -> str:
        spec = parse_spec({"name": "x", "recipe_options": SMALL, "training": {"seed": seed}})
        return fingerprint(flatten(initial_model(spec, dataset())))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = initial(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert initial(5) == first
    assert initial(6) != first


def test_a_tiny_model_is_tiny() -> None:
    assert flatten(load_recipe("tiny", {}).build_model(1024, 128)).numel() < 20_000


@pytest.mark.parametrize(
    ("recipe", "text"), [("Unbuildable", "raised RuntimeError: no memory"), ("Misunderstood", "not str")]
)
def test_a_recipe_that_builds_no_model_is_the_users_error(recipe: str, text: str) -> None:
    spec = parse_spec({"name": "x", "recipe": f"tests.training.test_gpt:{recipe}"})
    with pytest.raises(UserCodeError, match=text):
        initial_model(spec, dataset())


class Unbuildable(Recipe):
    def build_model(self, vocabulary_size: int, sequence_length: int) -> Any:
        raise RuntimeError("no memory")


class Misunderstood(Recipe):
    def build_model(self, vocabulary_size: int, sequence_length: int) -> Any:
        return "model"
