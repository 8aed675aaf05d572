"""The processes of one node. A node of one process is a team of one; `distributed` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anabasis.training.inner import InnerState
    from anabasis.training.local_round import RoundWork


class Team(Protocol):
    """What the leading process tells the others, so that all do the same steps at the same time.

    Attributes:
        rank, size: this process, and how many there are; 0 leads.
    """

    rank: int
    size: int

    def begin(self, work: RoundWork, flat: Tensor) -> None:
        """A round begins: every process starts from the leader's parameters."""
        ...

    def agree(self, decide: Callable[[], bool]) -> bool:
        """The leader's decision, in every process; only the leader calls `decide`."""
        ...

    def reduce(self, tensors: list[Tensor]) -> None:
        """Sum over the processes, in place."""
        ...

    def forget(self) -> None:
        """Drop the optimizer's memory."""
        ...

    def load_state(self, state: InnerState) -> None:
        """Replace the optimizer's memory."""
        ...

    def keep_alive(self) -> None:
        """The leader lives, but has nothing to do: call it at least once a minute."""
        ...

    def dismiss(self) -> None:
        """The campaign is over for this node: the others return."""
        ...


class Solo:
    """A team of one: nothing to tell anyone."""

    rank = 0
    size = 1

    def begin(self, work: RoundWork, flat: Tensor) -> None:
        pass

    def agree(self, decide: Callable[[], bool]) -> bool:
        return decide()

    def reduce(self, tensors: list[Tensor]) -> None:
        pass

    def forget(self) -> None:
        pass

    def load_state(self, state: InnerState) -> None:
        pass

    def keep_alive(self) -> None:
        pass

    def dismiss(self) -> None:
        pass
