"""The inner loop's machinery: one model and its AdamW, driven step by step.

On the CPU the result is a pure function of parameters, inner state, batches, learning rate and seed, for a given
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anabasis.campaign.spec import TrainingSpec
from anabasis.errors import CorruptData, InvalidSpec, UserCodeError
from anabasis.training.parameters import flatten, load_flat
from anabasis.training.recipe import Recipe, move_batch
from anabasis.training.user_code import user_code


class Reducer(Protocol):
    """Adds up tensors over the processes of one node, in place."""

    def __call__(self, tensors: list[Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class InnerState:
    """AdamW's memory, flat over the trainable parameters in order.

    Attributes:
        steps: optimizer steps of each parameter tensor (0: it never had a gradient).
        exp_avg, exp_avg_sq: float32 [P], first and second moments.
    """

    steps: list[int]
    exp_avg: Tensor
    exp_avg_sq: Tensor


class InnerTrainer:
    """AdamW (decoupled weight decay, arXiv:1711.05101) on one model; matrices decay, vectors do not.

    Args:
        model: in float32; moved to the device.
        reduce: adds gradients up over the node's processes; None for a single process.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        *,
        settings: TrainingSpec,
        device: torch.device,
        reduce: Reducer | None = None,
    ) -> None:
        self.recipe = recipe
        self.model = model.to(device)
        self.device = device
        self._settings = settings
        self._reduce = reduce
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise UserCodeError("build_model returned a model without trainable parameters")
        self._optimizer = _adamw(self._parameters, settings=settings)
        self._forward: Any = torch.compile(self.model) if settings.compile else self.model
        self._losses: list[float] = []
        self._pending: Tensor | None = None

    def load(self, flat: Tensor) -> None:
        """Take over parameters float32 [N]; the optimizer's memory stays."""
        load_flat(self.model, flat)

    def flat(self) -> Tensor:
        """The parameters now, as a new float32 CPU vector [N]."""
        return flatten(self.model)

    def begin(self, *, lr: float, seed: int) -> None:
        """Start counting losses anew, with this learning rate and state of torch's generators."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(seed)
        self._losses, self._pending = [], None
        self.model.train()

    def step(self, batch: Any, *, share: float = 1.0) -> None:
        """One optimizer step.

        Args:
            batch: this process's part of the batch.
            share: of the whole batch's samples that this part has.

        Raises:
            UserCodeError: from the recipe's loss or its backward pass.
        """
        self._optimizer.zero_grad(set_to_none=True)
        with user_code("loss"), self._precision():
            loss = self.recipe.loss(self._forward, move_batch(batch, self.device))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise UserCodeError("loss must return a tensor with one element")
        if share != 1.0:
            loss = loss * share
        with user_code("backward"):
            loss.backward()
        self._settle()
        self._pending = loss.detach().float().reshape(1)
        if self._reduce is not None:
            self._reduce([*self._gradients(), self._pending])
        if self._settings.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._settings.gradient_clip)
        self._optimizer.step()

    def mean_loss(self) -> float:
        """Mean loss of the steps since `begin`; not a number when there were none."""
        self._settle()
        return math.fsum(self._losses) / len(self._losses) if self._losses else math.nan

    def evaluate(self, batches: Iterable[Any]) -> float:
        """The recipe's validation loss with the parameters now."""
        self.model.eval()
        moved = (move_batch(batch, self.device) for batch in batches)
        with user_code("evaluate"), torch.no_grad(), self._precision():
            loss = float(self.recipe.evaluate(self.model, moved))
        self.model.train()
        return loss

    def forget(self) -> None:
        """Drop the optimizer's memory."""
        self._optimizer.state.clear()

    def state(self) -> InnerState:
        """A copy of the optimizer's memory."""
        memory = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters]
        return InnerState(
            steps=[int(entry["step"]) if "step" in entry else 0 for entry in memory],
            exp_avg=self._gather(memory, "exp_avg"),
            exp_avg_sq=self._gather(memory, "exp_avg_sq"),
        )

    def load_state(self, state: InnerState) -> None:
        """Replace the optimizer's memory.

        Raises:
            CorruptData: it is of another model.
        """
        sizes = [parameter.numel() for parameter in self._parameters]
        if len(state.steps) != len(sizes) or not state.exp_avg.numel() == state.exp_avg_sq.numel() == sum(sizes):
            raise CorruptData(f"inner state of {state.exp_avg.numel()} parameters; the model has {sum(sizes)}")
        self.forget()
        parts = zip(state.exp_avg.split(sizes), state.exp_avg_sq.split(sizes), strict=True)
        for parameter, steps, (first, second) in zip(self._parameters, state.steps, parts, strict=True):
            if steps == 0:
                continue
            where = parameter.device if self._optimizer.defaults.get("fused") else torch.device("cpu")
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=where),
                "exp_avg": first.view_as(parameter).to(parameter.device, copy=True),
                "exp_avg_sq": second.view_as(parameter).to(parameter.device, copy=True),
            }

    def _gather(self, memory: list[dict[str, Any]], name: str) -> Tensor:
        flat = torch.zeros(sum(parameter.numel() for parameter in self._parameters), dtype=torch.float32)
        sizes = [parameter.numel() for parameter in self._parameters]
        for entry, part in zip(memory, flat.split(sizes), strict=True):
            if name in entry:
                part.copy_(entry[name].reshape(-1))
        return flat

    def _gradients(self) -> list[Tensor]:
        """Of every parameter, in order: zeros where this process's part of the batch gave none."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _settle(self) -> None:
        """Read the previous step's loss. On a GPU this waits for that step, so that the host stays one step ahead."""
        if self._pending is not None:
            self._losses.append(self._pending.item())
            self._pending = None

    def _precision(self) -> AbstractContextManager[Any]:
        if self.device.type == "cuda" and self._settings.bf16:
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


def choose_device(wanted: str, *, rank: int = 0) -> torch.device:
    """The device of a process: `auto` is its GPU when there is one.

    Raises:
        InvalidSpec: (path `training.device`) a GPU is asked for, and this machine has none.
    """
    available = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InvalidSpec([("training.device", "is cuda, but this machine has no usable GPU; use auto")])
    return torch.device("cuda", rank % torch.cuda.device_count()) if available else torch.device("cpu")


def prepare_torch(settings: TrainingSpec) -> None:
    """Process-wide settings: threads and, for deterministic campaigns, deterministic kernels."""
    if settings.threads_per_process:
        torch.set_num_threads(settings.threads_per_process)
    if settings.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)


def _adamw(parameters: list[nn.Parameter], *, settings: TrainingSpec) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    fused = all(p.dtype == torch.float32 and p.device.type in ("cpu", "cuda") for p in parameters)
    return torch.optim.AdamW(groups, lr=settings.inner_lr, betas=settings.betas, fused=fused)
