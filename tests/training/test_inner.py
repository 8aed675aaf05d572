from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anabasis.campaign.spec import TrainingSpec
from anabasis.errors import CorruptData, InvalidSpec, UserCodeError
from anabasis.training.inner import InnerTrainer, choose_device
from anabasis.training.node_state import NodeState, pack_state, unpack_state
from anabasis.training.parameters import flatten
from anabasis.training.recipe import Recipe, load_recipe
from anabasis.training.recipes.tiny import Tiny

torch.set_num_threads(1)

CPU = torch.device("cpu")


def trainer(recipe: Recipe | None = None, **settings: Any) -> InnerTrainer:
    chosen = recipe or load_recipe("gpt", {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1})
    torch.manual_seed(0)
    return InnerTrainer(chosen, chosen.build_model(50, 8), settings=TrainingSpec(**settings), device=CPU)


def batches(count: int, *, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (4, 9), generator=generator) for _ in range(count)]


def train(inner: InnerTrainer, given: list[Tensor], *, lr: float = 1e-2, seed: int = 3) -> None:
    inner.begin(lr=lr, seed=seed)
    for batch in given:
        inner.step(batch)


def test_training_is_a_function_of_its_inputs() -> None:
    one, two = trainer(), trainer()
    train(one, batches(5))
    torch.manual_seed(99)  # what happened elsewhere in the process does not matter
    train(two, batches(5))
    assert torch.equal(one.flat(), two.flat())
    assert one.mean_loss() == two.mean_loss()


@pytest.mark.parametrize("change", [{"seed": 4}, {"lr": 2e-2}])
def test_seed_and_learning_rate_matter(change: dict[str, Any]) -> None:
    one, two = trainer(), trainer()
    train(one, batches(3))
    train(two, batches(3), **change)
    assert not torch.equal(one.flat(), two.flat())


def test_the_optimizer_remembers_over_rounds_and_a_copy_of_its_memory_is_exact() -> None:
    one, two, cold = trainer(), trainer(), trainer()
    train(one, batches(4))
    start = one.flat()
    memory = unpack_state(pack_state(NodeState(one.state(), None))).inner
    two.load_state(memory)
    for inner in (one, two, cold):
        inner.load(start)
        train(inner, batches(3, seed=2))
    assert torch.equal(one.flat(), two.flat())
    assert not torch.equal(one.flat(), cold.flat())


def test_forgetting_makes_it_new() -> None:
    one, new = trainer(), trainer()
    start = one.flat()
    train(one, batches(4))
    one.forget()
    one.load(start)
    train(one, batches(2))
    train(new, batches(2))
    assert torch.equal(one.flat(), new.flat())


def test_only_matrices_decay() -> None:
    recipe = load_recipe("gpt", {"layers": 1, "width": 16, "heads": 2})
    inner = InnerTrainer(recipe, recipe.build_model(50, 8), settings=TrainingSpec(weight_decay=0.5), device=CPU)
    decays = {group["weight_decay"]: group["params"] for group in inner._optimizer.param_groups}
    assert {parameter.dim() for parameter in decays[0.5]} == {2}
    assert {parameter.dim() for parameter in decays[0.0]} == {1}


def test_gradients_are_clipped() -> None:
    class Steep(Tiny):
        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return 1e6 * super().loss(model, batch)

    inner = trainer(Steep())
    train(inner, batches(1))
    norms = [parameter.grad.norm() for parameter in inner.model.parameters() if parameter.grad is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(1.0, rel=1e-4)


def test_the_mean_loss_is_that_of_the_steps_since_begin() -> None:
    class Counting(Tiny):
        calls = 0

        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            self.calls += 1
            return super().loss(model, batch) * 0 + self.calls

    inner = trainer(Counting())
    train(inner, batches(3))
    assert inner.mean_loss() == 2.0
    inner.begin(lr=0.1, seed=0)
    assert math.isnan(inner.mean_loss())


def test_evaluation_changes_nothing() -> None:
    inner = trainer()
    before = inner.flat()
    first = inner.evaluate(batches(2))
    assert inner.evaluate(batches(2)) == first
    assert torch.equal(inner.flat(), before)
    assert inner.model.training


class Raising(Tiny):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        raise KeyError("missing\nmore")


class Textual(Tiny):
    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        return "low"


class Detached(Tiny):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return torch.zeros(())


@pytest.mark.parametrize(
    ("recipe", "text"),
    [(Raising(), "loss raised KeyError"), (Textual(), "one element"), (Detached(), "backward raised RuntimeError")],
)
def test_what_the_recipe_does_wrong_is_the_users_error(recipe: Recipe, text: str) -> None:
    with pytest.raises(UserCodeError, match=text) as caught:
        train(trainer(recipe), batches(1))
    assert "\n" not in str(caught.value)


def test_a_model_without_parameters_cannot_be_trained() -> None:
    with pytest.raises(UserCodeError, match="without trainable"):
        InnerTrainer(Tiny(), nn.Identity(), settings=TrainingSpec(), device=CPU)


def test_the_memory_of_another_model_is_refused() -> None:
    inner, other = trainer(), trainer(Tiny())
    train(other, batches(1))
    with pytest.raises(CorruptData, match="the model has"):
        inner.load_state(other.state())


def test_a_node_state_comes_back_exactly() -> None:
    inner = trainer()
    train(inner, batches(2))
    state = NodeState(inner.state(), torch.randn(17))
    again = unpack_state(pack_state(state))
    assert again.inner.steps == state.inner.steps
    assert torch.equal(again.inner.exp_avg_sq, state.inner.exp_avg_sq)
    assert again.residual is not None
    assert torch.equal(again.residual, state.residual)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"garbage" * 10])
def test_garbage_is_no_node_state(data: bytes) -> None:
    with pytest.raises(CorruptData):
        unpack_state(data)


def test_a_parameter_without_gradient_keeps_its_value_and_memory() -> None:
    class Partial(Tiny):
        def build_model(self, vocabulary_size: int, sequence_length: int) -> nn.Module:
            model = super().build_model(vocabulary_size, sequence_length)
            model.register_parameter("unused", nn.Parameter(torch.ones(3)))
            return model

    inner = trainer(Partial())
    train(inner, batches(2))
    state = inner.state()
    assert 0 in state.steps
    inner.load_state(state)
    train(inner, batches(1))
    assert torch.equal(inner.model.state_dict()["unused"], torch.ones(3))
    assert flatten(inner.model).numel() == inner.flat().numel()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_the_specs_problem() -> None:
    assert choose_device("auto") == CPU
    with pytest.raises(InvalidSpec, match=r"training\.device"):
        choose_device("cuda")
