"""One node's part of a round: from the global parameters, some inner steps on its lanes of the sample order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anabasis.campaign.spec import TrainingSpec
from anabasis.errors import UserCodeError
from anabasis.training.dataset import Dataset
from anabasis.training.inner import InnerState, InnerTrainer
from anabasis.training.sampling import SampleFeed, round_seed
from anabasis.training.team import Team
from anabasis.training.user_code import user_code


@dataclass(frozen=True, slots=True)
class RoundWork:
    """What to do in a round.

    Attributes:
        version, slot: for the seed of torch's generators.
        offsets: lane → committed offset, for the lanes of this node.
        steps: at most.
        lr: of the inner optimizer.
    """

    version: int
    slot: int
    offsets: Mapping[int, int]
    steps: int
    lr: float


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What was done. `loss` is the mean over the steps; `consumed` is lane → [first, end) offsets."""

    steps: int
    samples: int
    loss: float
    consumed: dict[int, tuple[int, int]]
    seconds: float


class LocalTrainer:
    """Runs rounds on one node; with several processes, every one of them has one and they go in step.

    Args:
        partitions: lanes of the campaign.
    """

    def __init__(
        self, inner: InnerTrainer, *, dataset: Dataset, settings: TrainingSpec, partitions: int, team: Team
    ) -> None:
        self.inner = inner
        self.dataset = dataset
        self.team = team
        self._settings = settings
        self._partitions = partitions

    def run(
        self,
        work: RoundWork,
        flat: Tensor,
        *,
        go_on: Callable[[int], bool] = lambda _: True,
        on_step: Callable[[], None] = lambda: None,
    ) -> LocalResult:
        """Train from `flat` float32 [N]; the result's parameters are in `inner`.

        Args:
            go_on: asked before each step with the steps done, in the leading process; False ends the round.
            on_step: called after each step.
        """
        started = time.monotonic()
        self.team.begin(work, flat)
        self.inner.load(flat)
        seed = round_seed(seed=self._settings.seed, version=work.version, slot=work.slot, rank=self.team.rank)
        self.inner.begin(lr=work.lr, seed=seed)
        steps = self._steps(work, go_on=go_on, on_step=on_step)
        size = self._settings.batch_size
        return LocalResult(
            steps=steps,
            samples=steps * size,
            loss=self.inner.mean_loss(),
            consumed=self._feed(work).consumed(steps * size),
            seconds=time.monotonic() - started,
        )

    def forget(self) -> None:
        """Drop the optimizer's memory, in all processes."""
        self.team.forget()
        self.inner.forget()

    def load_state(self, state: InnerState) -> None:
        """Replace the optimizer's memory, in all processes."""
        self.team.load_state(state)
        self.inner.load_state(state)

    def evaluate(self, flat: Tensor, *, on_batch: Callable[[], None] = lambda: None) -> float:
        """Validation loss of parameters float32 [N], in the leading process alone."""
        self.inner.load(flat)

        def reported() -> Iterator[Any]:
            for batch in self.inner.recipe.validation_batches(self.dataset, batch_size=self._settings.batch_size):
                on_batch()
                yield batch

        return self.inner.evaluate(reported())

    def _steps(self, work: RoundWork, *, go_on: Callable[[int], bool], on_step: Callable[[], None]) -> int:
        size = self._settings.batch_size
        share = len(range(self.team.rank, size, self.team.size)) / size
        source = self._batches(work)
        steps = 0
        while steps < work.steps and self.team.agree(lambda: go_on(steps)):  # noqa: B023 (called at once)
            with user_code("batches"):
                batch = next(source, None)
            if batch is None:
                raise UserCodeError(f"batches gave {steps} batches for {work.steps} lists of indices; one for each")
            self.inner.step(batch, share=share)
            steps += 1
            on_step()
        return steps

    def _batches(self, work: RoundWork) -> Iterator[Any]:
        """This process's parts of the round's batches: every `size`-th sample."""
        rank, size = self.team.rank, self.team.size
        whole = self._feed(work).batches(work.steps, size=self._settings.batch_size)
        with user_code("batches"):
            return iter(self.inner.recipe.batches(self.dataset, (indices[rank::size] for indices in whole)))

    def _feed(self, work: RoundWork) -> SampleFeed:
        return SampleFeed(
            seed=self._settings.seed,
            offsets=work.offsets,
            partitions=self._partitions,
            samples=self.dataset.samples,
        )
