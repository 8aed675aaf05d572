"""A node of several processes, one per device: they split each batch and add up their gradients.

The trainer that the agent started launches them with torchrun and watches over them. Rank 0 leads: it alone talks to
the mailbox, and tells the others what to do over a control group, one short message at a time. All hold the same
model and optimizer and make the same steps, so the node is one contributor like any other.

When any process dies, torchrun ends the others, and the node is restarted as a whole: the committed state is in
the store. A process that loses its parent is killed by the kernel, all along the chain agent → trainer → torchrun →
ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from anabasis.campaign.spec import TrainingSpec
from anabasis.training.inner import InnerState
from anabasis.training.local_round import LocalTrainer, RoundWork

SILENCE_SECONDS = 1_800.0
"""The leader says something at least every ten seconds, except in long transfers and merges. When it says nothing
for so long, the others give up; the agent notices a stuck leader much earlier."""


class Order(IntEnum):
    """What the leader says."""

    DISMISS = 0
    KEEP_ALIVE = 1
    BEGIN = 2
    FORGET = 3
    LOAD_STATE = 4


class ProcessTeam:
    """The processes that torchrun started; implements `team.Team`.

    Args:
        gradients: the group in which gradients are added up (the devices' own); orders go over the default group.
    """

    def __init__(self, *, gradients: Any = None) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._gradients = gradients

    @classmethod
    def joined(cls, settings: TrainingSpec) -> ProcessTeam:
        """The team of this process, by torchrun's environment."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on one machine; its host name may not resolve
        dist.init_process_group("gloo", timeout=timedelta(seconds=SILENCE_SECONDS))
        gpu = settings.device != "cpu" and torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
        return cls(gradients=dist.new_group(backend="nccl") if gpu else None)

    def begin(self, work: RoundWork, flat: Tensor) -> None:
        if self.rank == 0:
            self._order(Order.BEGIN)
            self._send_text(json.dumps(asdict(work)))
            self._send(flat)

    def agree(self, decide: Callable[[], bool]) -> bool:
        answer = torch.tensor([1 if self.rank == 0 and decide() else 0])
        dist.broadcast(answer, src=0)
        return bool(answer.item())

    def reduce(self, tensors: list[Tensor]) -> None:
        joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(joined, group=self._gradients)
        for tensor, part in zip(tensors, joined.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def forget(self) -> None:
        if self.rank == 0:
            self._order(Order.FORGET)

    def load_state(self, state: InnerState) -> None:
        if self.rank == 0:
            self._order(Order.LOAD_STATE)
            self._send_text(json.dumps(state.steps))
            self._send(state.exp_avg)
            self._send(state.exp_avg_sq)

    def keep_alive(self) -> None:
        self._order(Order.KEEP_ALIVE)

    def dismiss(self) -> None:
        self._order(Order.DISMISS)

    # --- for the others -------------------------------------------------------------------------------

    def hear(self) -> Order:
        """The leader's next order."""
        order = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(order, src=0)
        return Order(int(order.item()))

    def receive_work(self) -> tuple[RoundWork, Tensor]:
        """What follows `BEGIN`."""
        record = json.loads(self._receive_text())
        record["offsets"] = {int(lane): offset for lane, offset in record["offsets"].items()}
        return RoundWork(**record), self._receive(torch.float32)

    def receive_state(self) -> InnerState:
        """What follows `LOAD_STATE`."""
        steps = json.loads(self._receive_text())
        return InnerState(steps, self._receive(torch.float32), self._receive(torch.float32))

    # --- messages -------------------------------------------------------------------------------------

    def _order(self, order: Order) -> None:
        dist.broadcast(torch.tensor([int(order)], dtype=torch.int64), src=0)

    def _send(self, tensor: Tensor) -> None:
        dist.broadcast(torch.tensor([tensor.numel()], dtype=torch.int64), src=0)
        dist.broadcast(tensor.contiguous(), src=0)

    def _receive(self, dtype: torch.dtype) -> Tensor:
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, src=0)
        tensor = torch.empty(int(length.item()), dtype=dtype)
        dist.broadcast(tensor, src=0)
        return tensor

    def _send_text(self, text: str) -> None:
        self._send(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))

    def _receive_text(self) -> str:
        return bytes(self._receive(torch.uint8).tolist()).decode()


def follow(trainer: LocalTrainer, team: ProcessTeam) -> None:
    """Do as the leader says, until it dismisses."""
    while (order := team.hear()) is not Order.DISMISS:
        if order is Order.BEGIN:
            work, flat = team.receive_work()
            trainer.run(work, flat)
        elif order is Order.FORGET:
            trainer.inner.forget()
        elif order is Order.LOAD_STATE:
            trainer.inner.load_state(team.receive_state())
