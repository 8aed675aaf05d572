"""A recipe is the user's part of a campaign: model, loss and, if need be, data, as one class.

    class MyRecipe(Recipe):
        def __init__(self, *, width: int = 256) -> None:
            self.width = width

        def build_model(self, vocabulary_size: int, sequence_length: int) -> nn.Module:
            return MyModel(vocabulary_size, self.width)

        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return cross_entropy(model, batch)

A spec names it by its import path, `recipe: my_package.models:MyRecipe`, and gives keyword arguments in
`recipe_options`. The module must be importable on every node and where the aggregator runs. What a recipe raises
counts as the user's error and reaches the campaign with its traceback.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from anabasis.errors import InvalidSpec

if TYPE_CHECKING:
    from anabasis.training.dataset import Dataset

BUILT_IN = {
    "gpt": "anabasis.training.recipes.gpt:Gpt",
    "tiny": "anabasis.training.recipes.tiny:Tiny",
}


class Recipe:
    """Base class. Only `build_model` has to be written; `loss` defaults to next-token cross-entropy.

    Options arrive as keyword arguments of `__init__`, as JSON has them. Raise ValueError with a message that starts
    with the option's name and a colon to have the problem reported under `recipe_options.<name>`.
    """

    def build_model(self, vocabulary_size: int, sequence_length: int) -> nn.Module:
        """A new model on the CPU in float32, with initial parameters from torch's default generator.

        All floating entries of its `state_dict()` are merged over nodes: mind batch statistics. Buffers that are
        constant should be registered with `persistent=False`.
        """
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean training loss of a batch as a scalar.

        Args:
            batch: what `batches` yields, moved to the model's device: by default int64 [B, L + 1], whose columns
                0 … L − 1 are inputs and 1 … L are targets.
        """
        return next_token_loss(model(batch[:, :-1]), batch)

    def batches(self, dataset: Dataset, indices: Iterable[Sequence[int]]) -> Iterator[Any]:
        """Training batches: exactly one for each list of sample indices, in order.

        Override it to train on data of your own: an index (0 … `dataset.samples` − 1) stands for one sample, the
        same one for ever, on every node. Accounting is by index: a round's lists are committed when their batches
        have been trained and merged, and given out again, perhaps to another node, when they have not. So map
        indices to samples by a pure function, and every sample is trained exactly once per epoch whatever fails.
        `indices` may be read ahead, to load data in other threads.

        A batch is a tensor, or tensors in (nested) tuples, lists and dictionaries, with samples along dimension 0.
        """
        for chosen in indices:
            yield dataset.batch(chosen)

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> float:
        """Mean loss over the validation batches (moved to the model's device), weighted by their samples.

        Called without gradients, in evaluation mode.
        """
        total, samples = 0.0, 0
        for batch in batches:
            size = batch_size(batch)
            total += float(self.loss(model, batch)) * size
            samples += size
        return total / samples if samples else float("nan")

    def validation_batches(self, dataset: Dataset, *, batch_size: int) -> Iterator[Any]:
        """What `evaluate` gets; always the same. Override it together with `batches`."""
        return dataset.validation_batches(batch_size=batch_size)

    def config(self) -> dict[str, Any]:
        """The options in force, JSON-able, for the published model's card: by default the public attributes."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def next_token_loss(logits: Tensor, batch: Tensor) -> Tensor:
    """Cross-entropy in nats per token: logits [B, L, V] for inputs, batch int64 [B, L + 1]."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def batch_size(batch: Any) -> int:
    """Samples in a batch: dimension 0 of its first tensor."""
    if isinstance(batch, Tensor):
        return batch.shape[0]
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return batch_size(next(iter(parts)))


def move_batch(batch: Any, device: torch.device) -> Any:
    """The batch on a device; containers are rebuilt, everything but tensors is passed on."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: move_batch(part, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(part, device) for part in batch)
    return batch


def load_recipe(name: str, options: dict[str, Any]) -> Recipe:
    """The recipe of a spec.

    Args:
        name: `gpt`, `tiny`, or `package.module:Class`.

    Raises:
        InvalidSpec: (path `recipe`, `recipe_options` or `recipe_options.<name>`) with every problem of the options.
    """
    found = _find_class(name)
    _check_names(found, options)
    try:
        return found(**options)
    except (TypeError, ValueError) as error:
        raise InvalidSpec([_blamed(str(error), options)]) from error
    except Exception as error:  # the user's code may raise anything
        raise InvalidSpec([("recipe_options", f"{name} refuses them: {type(error).__name__}: {error}")]) from error


def _find_class(name: str) -> type[Recipe]:
    path = BUILT_IN.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise InvalidSpec([("recipe", f"{name!r} is not one of {', '.join(BUILT_IN)}; others: package.module:Class")])
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise InvalidSpec([("recipe", f"{name!r} cannot be imported: {type(error).__name__}: {error}")]) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InvalidSpec([("recipe", f"module {module_name} has no {class_name!r}")])
    if not (inspect.isclass(found) and issubclass(found, Recipe)):
        raise InvalidSpec([("recipe", f"{name!r} is no subclass of anabasis.training.recipe.Recipe")])
    return cast("type[Recipe]", found)


def _check_names(found: type[Recipe], options: dict[str, Any]) -> None:
    parameters = inspect.signature(found).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = ", ".join(parameters) or "none"
    problems = [(f"recipe_options.{n}", f"unknown option; known: {known}") for n in options if n not in parameters]
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    problems += [(f"recipe_options.{n}", "is required by this recipe") for n in needed if n not in options]
    if problems:
        raise InvalidSpec(problems)


def _blamed(message: str, options: dict[str, Any]) -> tuple[str, str]:
    """`heads: must divide …` is a problem of `recipe_options.heads`."""
    option, colon, text = message.partition(":")
    if colon and option in options:
        return (f"recipe_options.{option}", text.strip())
    return ("recipe_options", message)
