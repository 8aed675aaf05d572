"""Safetensors files as flat images: written without copying, read without copying.

The format is the public safetensors one (an 8-byte little-endian header length, a JSON header, raw row-major
tensors without gaps), so any safetensors reader opens these files. What this module adds over the library is
control of memory: a tensor that lives in an `Image` *is* its file, and `unpack` returns views of the bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabasis.errors import CorruptData
from anabasis.training.pages import allocate

ALIGNMENT_BYTES = 64
"""Data begin at a multiple of this, a cache line, so that the views of an image are aligned for every dtype."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file to come."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def as_bytes(tensor: Tensor) -> memoryview:
    """The raw bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


class Image:
    """A whole safetensors file in one buffer, with its tensors as views into it.

    Args:
        specs: tensors in file order.
        padding_bytes: spare bytes after the file's end, for kernels that work in whole blocks.
    """

    def __init__(self, specs: Sequence[TensorSpec], *, metadata: Mapping[str, str], padding_bytes: int = 0) -> None:
        header = header_of(specs, metadata=metadata)
        self.data_start = len(header)
        self.size_bytes = len(header) + sum(spec.size_bytes for spec in specs)
        self.buffer = allocate(self.size_bytes + padding_bytes)
        self.buffer[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self._specs: dict[str, tuple[TensorSpec, Tensor]] = {}
        at = self.data_start
        for spec in specs:
            self._specs[spec.name] = (spec, self.buffer[at : at + spec.size_bytes])
            at += spec.size_bytes

    def view(self, name: str) -> Tensor:
        """The tensor itself: writing to it writes to the file. It must lie aligned (the first one always does)."""
        spec, raw = self._specs[name]
        return raw.view(spec.dtype).view(spec.shape)

    def write(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor of the promised type and shape into the file, wherever it lies."""
        spec, raw = self._specs[name]
        if tensor.dtype != spec.dtype or tuple(tensor.shape) != spec.shape:
            raise ValueError(f"{name} must be {spec.dtype} {list(spec.shape)}, not {tensor.dtype} {list(tensor.shape)}")
        raw.copy_(tensor.contiguous().reshape(-1).view(torch.uint8))

    def file(self) -> memoryview:
        """The file's bytes: valid until a tensor of the image changes."""
        return as_bytes(self.buffer[: self.size_bytes])


def header_of(specs: Sequence[TensorSpec], *, metadata: Mapping[str, str]) -> bytes:
    """The file's beginning, padded with spaces up to the first tensor."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.size_bytes],
        }
        at += spec.size_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def pack(tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str]) -> bytes:
    """One file with these CPU tensors, in the mapping's order."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    specs = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in whole.items()]
    return b"".join([header_of(specs, metadata=metadata), *(as_bytes(tensor) for tensor in whole.values())])


def unpack(data: bytes | bytearray | memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (views of `data`, not to be written to) and metadata of a file.

    Raises:
        CorruptData: the header is not one, or does not describe exactly these bytes.
    """
    header, start = _read_header(data)
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, Tensor] = {}
    body = _view(data)[start:]
    expected = 0
    try:
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = _DTYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
            first, end = entry["data_offsets"]
            spec = TensorSpec(name, dtype, shape)
            if first != expected or end - first != spec.size_bytes or end > body.numel() or min(shape, default=0) < 0:
                raise CorruptData(f"tensor {name!r}: offsets {first}..{end} do not fit shape {list(shape)}")
            tensors[name] = _typed(body[first:end], dtype, shape)
            expected = end
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"tensor file: bad header entry ({error!r})") from None
    if expected != body.numel():
        raise CorruptData(f"tensor file: {body.numel()} data bytes, the header describes {expected}")
    return tensors, {str(key): str(value) for key, value in metadata.items()}


class _Borrowed:
    """Memory of another object, by numpy's array protocol."""

    def __init__(self, owner: bytes | bytearray | memoryview) -> None:
        self.owner = owner
        address = np.frombuffer(owner, dtype=np.uint8).ctypes.data
        # Marked writable although bytes are not: torch has no read-only tensors and warns; nobody writes to these.
        self.__array_interface__ = {"shape": (len(owner),), "typestr": "|u1", "data": (address, False), "version": 3}


def _view(data: bytes | bytearray | memoryview) -> Tensor:
    return torch.from_numpy(np.asarray(_Borrowed(data)))


def _read_header(data: bytes | bytearray | memoryview) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise CorruptData(f"tensor file of {len(data)} bytes: header length {length} is impossible (torn or not one)")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"tensor file: header is no JSON ({error})") from None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise CorruptData("tensor file: header is no JSON object")
    return header, 8 + length


def _typed(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if raw.data_ptr() % dtype.itemsize or raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()  # a foreign writer's order of tensors; kernels want aligned data
    return raw.view(dtype).view(shape)
