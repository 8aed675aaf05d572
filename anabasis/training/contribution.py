"""One node's upload of one round: the compressed pseudo-gradient with its accounting."""

from __future__ import annotations

from collections.abc import Mapping

from blake3 import blake3
from pydantic import ValidationError
from torch import Tensor

from anabasis.campaign.records import ContributionHeader
from anabasis.errors import CorruptData
from anabasis.training.parameters import BLOCK
from anabasis.training.tensorfile import as_bytes, pack, unpack

FORMAT = "anabasis-update-1"

HASH_THREADS_ABOVE_BYTES = 1 << 23
"""Below 8 MB, starting threads costs more than they save."""


def payload_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hex BLAKE3 over the raw bytes of the tensors in name order."""
    hasher = blake3(max_threads=_threads(sum(tensor.nbytes for tensor in tensors.values())))
    for name in sorted(tensors):
        hasher.update(as_bytes(tensors[name].contiguous()))
    return hasher.hexdigest()


def pack_contribution(header: ContributionHeader, tensors: Mapping[str, Tensor]) -> bytes:
    """The object to put into the mailbox; fills in the header's `payload_hash`."""
    sealed = header.model_copy(update={"payload_hash": payload_hash(tensors)})
    ordered = {name: tensors[name] for name in sorted(tensors)}
    text = sealed.model_dump_json()
    return pack(ordered, metadata={**update_metadata(), "header": text, "seal": _seal(text)})


def unpack_contribution(data: bytes | bytearray | memoryview) -> tuple[ContributionHeader, dict[str, Tensor]]:
    """Header and tensors (views of `data`), after checking the hashes of both.

    Raises:
        CorruptData: torn, not a contribution, or other bytes than its sender packed.
    """
    tensors, metadata = unpack(data)
    check_format(metadata)
    text = metadata.get("header", "")
    if metadata.get("seal") != _seal(text):
        raise CorruptData("contribution: the header's bytes are not those that were sealed")
    try:
        header = ContributionHeader.model_validate_json(text)
    except ValidationError as error:
        raise CorruptData(f"contribution: header is invalid ({error.error_count()} problems)") from None
    found = payload_hash(tensors)
    if found != header.payload_hash:
        raise CorruptData(
            f"contribution of {header.slot}-{header.attempt}: payload hash {found[:12]} is not the header's"
        )
    return header, tensors


def update_metadata() -> dict[str, str]:
    """Metadata of every update file. Contributions add `header` (JSON) and `seal` (hex BLAKE3 of that JSON)."""
    return {"format": FORMAT, "block": str(BLOCK)}


def unpack_delta(data: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """The tensors of a version's outer update (views of `data`; its hash is the blob's, checked by the reader).

    Raises:
        CorruptData: not an update file.
    """
    tensors, metadata = unpack(data)
    check_format(metadata)
    return tensors


def check_format(metadata: Mapping[str, str]) -> None:
    """Raise `CorruptData` unless these are an update's metadata, of a version that is understood."""
    if metadata.get("format") != FORMAT or metadata.get("block") != str(BLOCK):
        raise CorruptData(
            f"update: format {metadata.get('format')!r}, block {metadata.get('block')!r}; known: {FORMAT}"
        )


def _seal(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def _threads(size_bytes: int) -> int:
    return blake3.AUTO if size_bytes > HASH_THREADS_ABOVE_BYTES else 1
