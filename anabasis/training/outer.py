"""State of the outer optimizer: momentum and what quantisation has lost so far."""

from __future__ import annotations

import torch

from anabasis.errors import CorruptData
from anabasis.training.parameters import padded
from anabasis.training.tensorfile import Image, TensorSpec, unpack

FORMAT = "anabasis-outer-1"


class OuterState:
    """Momentum m and residual e of the outer step, living in their own safetensors file.

    The outer step is Nesterov as in `torch.optim.SGD` (DiLoCo, arXiv:2311.08105), written with the look-ahead
    term m = η μ v as its state, which saves a pass over memory, and with error feedback on the server's side:
    `m ← μ (m + η Δ);  e ← e + η Δ + m;  d = Q(e);  e ← e − d;  θ ← θ − d`.

    Attributes:
        momentum, residual: float32 [padded N], zeros after N.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        length = padded(count)
        specs = [TensorSpec("momentum", torch.float32, (length,)), TensorSpec("residual", torch.float32, (length,))]
        self._image = Image(specs, metadata={"format": FORMAT, "count": str(count)})
        self.momentum = self._image.view("momentum")
        self.residual = self._image.view("residual")

    def reset(self) -> None:
        """Forget everything: the state before the first round, and after a rollback."""
        self.momentum.zero_()
        self.residual.zero_()

    def file(self) -> memoryview:
        """The safetensors file: valid until the next step."""
        return self._image.file()

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Take over the state of a checkpoint.

        Raises:
            CorruptData: not such a file, or of another number of parameters.
        """
        tensors, metadata = unpack(data)
        if metadata.get("format") != FORMAT or metadata.get("count") != str(self.count):
            raise CorruptData(
                f"outer state: format {metadata.get('format')!r} of {metadata.get('count')} parameters; "
                f"needed {FORMAT} of {self.count}"
            )
        for name, target in (("momentum", self.momentum), ("residual", self.residual)):
            source = tensors.get(name)
            if source is None or source.shape != target.shape or source.dtype != target.dtype:
                raise CorruptData(f"outer state: {name} is missing or is not float32 [{target.numel()}]")
            target.copy_(source)
