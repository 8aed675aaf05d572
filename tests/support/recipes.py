"""Recipes that go wrong on purpose. `from_call` counts calls of `loss` in this process, evaluations included."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn

from anabasis.training.recipes.tiny import Tiny


class _Counting(Tiny):
    def __init__(self, *, width: int = 8, from_call: int = 1) -> None:
        super().__init__(width=width)
        self.from_call = from_call
        self._calls = 0

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self._calls += 1
        if self._calls >= self.from_call:
            return self.misbehave(super().loss(model, batch))
        return super().loss(model, batch)

    def misbehave(self, loss: Tensor) -> Tensor:
        raise NotImplementedError


class Raising(_Counting):
    """Raises in its own code."""

    def misbehave(self, loss: Tensor) -> Tensor:
        raise ZeroDivisionError("the recipe divides by zero")


class NotFinite(_Counting):
    """Its loss is not a number."""

    def misbehave(self, loss: Tensor) -> Tensor:
        return loss * torch.nan


class Killed(_Counting):
    """Its process dies without a word, as when memory runs out."""

    def misbehave(self, loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return loss


class Stuck(_Counting):
    """Never comes back from a step."""

    def misbehave(self, loss: Tensor) -> Tensor:
        while True:
            time.sleep(3_600)


class Slow(Tiny):
    """A step takes so many seconds more."""

    def __init__(self, *, width: int = 8, seconds_per_step: float = 0.05) -> None:
        super().__init__(width=width)
        self.seconds_per_step = seconds_per_step

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        if model.training:
            time.sleep(self.seconds_per_step)
        return super().loss(model, batch)


class Another(Tiny):
    """Builds another model than it did before: `FLAVOUR` in the environment changes its width."""

    def build_model(self, vocabulary_size: int, sequence_length: int) -> Any:
        self.width = int(os.environ.get("FLAVOUR", "8"))
        return super().build_model(vocabulary_size, sequence_length)
