"""A model as one flat float32 vector, and back.

The order is that of `model.state_dict()`: floating tensors only, tied tensors once (under their first name).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor, nn

from anabasis.campaign.records import TensorLayout
from anabasis.errors import CorruptData
from anabasis.training.tensorfile import Image, TensorSpec, as_bytes, unpack

BLOCK = 1024
"""Elements that share one quantisation scale. All kernels work in whole blocks."""

FORMAT = "anabasis-parameters-1"


def layout_of(model: nn.Module) -> list[TensorLayout]:
    """Where each tensor of the model lies in its flat vector (offsets in elements)."""
    layout: list[TensorLayout] = []
    offset = 0
    for name, tensor in _floating(model).items():
        layout.append(TensorLayout(name=name, shape=list(tensor.shape), offset=offset))
        offset += tensor.numel()
    return layout


def flatten(model: nn.Module) -> Tensor:
    """The model's parameters and floating buffers as a new float32 CPU vector [N].

    Negative zeros become positive ones: applying an update must not depend on the sign of a zero.
    """
    tensors = _floating(model).values()
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32)
    offset = 0
    for tensor in tensors:
        flat[offset : offset + tensor.numel()].copy_(tensor.reshape(-1))
        offset += tensor.numel()
    return flat.add_(0.0)


def load_flat(model: nn.Module, flat: Tensor) -> None:
    """Copy a flat vector [N] into the model, in place (any device or dtype of the model).

    Raises:
        CorruptData: the vector is not as long as the model.
    """
    tensors = _floating(model)
    total = sum(tensor.numel() for tensor in tensors.values())
    if flat.numel() != total:
        raise CorruptData(f"flat vector has {flat.numel()} elements, the model {total}: recipe or its options differ")
    offset = 0
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.copy_(flat[offset : offset + tensor.numel()].view(tensor.shape))
            offset += tensor.numel()


def fingerprint(flat: Tensor) -> str:
    """Hex xxh3_128 over the raw float32 values: equal exactly when all bits are."""
    return xxhash.xxh3_128_hexdigest(as_bytes(flat))


def named_views(flat: Tensor, layout: Sequence[TensorLayout]) -> dict[str, Tensor]:
    """The flat vector's tensors by name, without a copy."""
    return {entry.name: flat[entry.offset : entry.offset + entry.count].view(entry.shape) for entry in layout}


def count_of(layout: Sequence[TensorLayout]) -> int:
    """Elements of the flat vector."""
    return sum(entry.count for entry in layout)


def padded(count: int) -> int:
    """`count` rounded up to whole blocks."""
    return -(-count // BLOCK) * BLOCK


class ParameterImage:
    """A flat vector that lives in the safetensors file of its named tensors: a snapshot costs no copy.

    Attributes:
        flat: float32 [N], a view; `blocks`: float32 [padded N], zeros after N.
    """

    def __init__(self, layout: Sequence[TensorLayout]) -> None:
        self.layout = list(layout)
        count = count_of(layout)
        specs = [TensorSpec(entry.name, torch.float32, tuple(entry.shape)) for entry in layout]
        spare = 4 * (padded(count) - count)
        self._image = Image(specs, metadata={"format": FORMAT}, padding_bytes=spare)
        self.blocks = self._image.buffer[self._image.data_start :].view(torch.float32)
        self.flat = self.blocks[:count]

    def file(self) -> memoryview:
        """The safetensors file: valid until the parameters change."""
        return self._image.file()

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Overwrite the parameters with those of a snapshot.

        Raises:
            CorruptData: other names or shapes than this layout's.
        """
        tensors, _ = unpack(data)
        self.load_named(tensors)

    def load_named(self, tensors: dict[str, Tensor]) -> None:
        for name, view in named_views(self.flat, self.layout).items():
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != view.shape or tensor.dtype != torch.float32:
                raise CorruptData(f"snapshot: {name!r} is missing or is not float32 {list(view.shape)}")
            view.copy_(tensor)
        if len(tensors) != len(self.layout):
            raise CorruptData(f"snapshot has {len(tensors)} tensors, the layout {len(self.layout)}")


def _floating(model: nn.Module) -> dict[str, Tensor]:
    """Floating tensors of the state by name, each storage once."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and identity in seen:
            continue
        seen.add(identity)
        found[name] = tensor
    return found
