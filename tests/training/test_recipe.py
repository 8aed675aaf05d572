from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anabasis.errors import InvalidSpec
from anabasis.training.recipe import Recipe, batch_size, load_recipe, move_batch, next_token_loss
from anabasis.training.recipes.tiny import Tiny

torch.set_num_threads(1)


def problems_of(name: str, options: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        load_recipe(name, options)
    return dict(caught.value.problems)


@pytest.mark.parametrize("name", ["gpt", "tiny", "anabasis.training.recipes.tiny:Tiny"])
def test_recipes_are_found_by_name_and_by_import_path(name: str) -> None:
    assert isinstance(load_recipe(name, {}), Recipe)


def test_options_reach_the_recipe_and_its_config() -> None:
    assert load_recipe("tiny", {"width": 4}).config() == {"width": 4}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transformer", "not one of gpt, tiny"),
        ("no_such_package.models:Model", "cannot be imported: ModuleNotFoundError"),
        ("anabasis.training.recipe:Missing", "has no 'Missing'"),
        ("pathlib:Path", "no subclass"),
        ("anabasis.training.recipe:load_recipe", "no subclass"),
    ],
)
def test_what_is_no_recipe_is_the_specs_problem(name: str, text: str) -> None:
    assert text in problems_of(name, {})["recipe"]


def test_a_module_that_raises_is_reported_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_recipe_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "ZeroDivisionError" in problems_of("broken_recipe_module:Recipe", {})["recipe"]
    sys.modules.pop("broken_recipe_module", None)


def test_every_unknown_option_is_reported_by_path() -> None:
    found = problems_of("gpt", {"head": 2, "depth": 3, "width": 64})
    assert set(found) == {"recipe_options.head", "recipe_options.depth"}
    assert "layers" in found["recipe_options.head"]


def test_required_options_are_named() -> None:
    found = problems_of("tests.training.test_recipe:Demanding", {})
    assert found == {"recipe_options.size": "is required by this recipe"}


def test_a_bad_value_is_reported_at_its_option() -> None:
    assert "'x'" in problems_of("gpt", {"layers": "x"})["recipe_options.layers"]


def test_any_other_refusal_is_a_problem_of_the_options() -> None:
    assert "RuntimeError: no" in problems_of("tests.training.test_recipe:Demanding", {"size": -1})["recipe_options"]


def test_the_default_loss_is_cross_entropy_of_the_next_token() -> None:
    recipe = Tiny()
    batch = torch.randint(0, 50, (3, 9))
    uniform = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 50, bias=False))
    nn.init.zeros_(uniform[1].weight)
    assert recipe.loss(uniform, batch).item() == pytest.approx(torch.tensor(50.0).log().item(), rel=1e-5)


def test_evaluation_weighs_batches_by_their_samples() -> None:
    class Mean(Tiny):
        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return batch.float().mean()

    batches = [torch.zeros(3, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64)]
    assert Mean().evaluate(nn.Identity(), batches) == pytest.approx(0.25)


def test_batches_may_be_nested() -> None:
    batch = {"a": (torch.zeros(4, 2), "label"), "b": [torch.ones(4)]}
    moved = move_batch(batch, torch.device("cpu"))
    assert batch_size(moved) == 4
    assert moved["a"][1] == "label"


def test_logits_of_reduced_precision_give_a_float_loss() -> None:
    logits = torch.zeros(2, 3, 5, dtype=torch.bfloat16)
    assert next_token_loss(logits, torch.zeros(2, 4, dtype=torch.int64)).dtype == torch.float32


class Demanding(Recipe):
    def __init__(self, *, size: int) -> None:
        if size < 0:
            raise RuntimeError("no")
