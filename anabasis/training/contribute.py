"""From trained parameters to a contribution: pseudo-gradient, error feedback, compression, accounting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabasis.campaign.records import BlobRef, ContributionHeader, RosterMember, VersionManifest
from anabasis.training.local_round import LocalResult
from anabasis.training.quantize import Compression, encode_in_place


@dataclass(frozen=True, slots=True)
class Encoded:
    """A compressed update.

    Attributes:
        residual: float32 [N], what compression lost; None: nothing.
        finite: whether all of it is.
    """

    tensors: dict[str, Tensor]
    residual: Tensor | None
    finite: bool


def encode_round(base: Tensor, local: Tensor, *, residual: Tensor | None, compression: Compression) -> Encoded:
    """Compress the pseudo-gradient base − local plus what was lost before (error feedback, arXiv:1901.09847).

    Args:
        local: float32 [N]; overwritten.
    """
    update = torch.sub(base, local, out=local)
    if residual is not None:
        update.add_(residual)
    tensors = encode_in_place(update, compression=compression)
    numbers = tensors.get("scale", tensors["q"])  # a block with a number that is not finite has such a scale
    finite = bool(torch.isfinite(numbers).all())
    return Encoded(tensors, update if compression == "int8" and finite else None, finite)


def header_of(
    manifest: VersionManifest,
    result: LocalResult,
    *,
    member: RosterMember,
    seconds: tuple[float, float, float],
    compression: Compression,
    sequence_length: int,
    validation_loss: float | None,
    state: BlobRef | None,
) -> ContributionHeader:
    """The accounting of one contribution.

    Args:
        manifest: of the version that was trained from.
        seconds: train, sync, wait.
    """
    train, sync, wait = seconds
    return ContributionHeader(
        campaign=manifest.campaign,
        base_version=manifest.version,
        base_chain=manifest.chain,
        slot=member.slot,
        attempt=member.attempt,
        nonce=member.nonce,
        steps=result.steps,
        tokens=result.samples * sequence_length,
        loss=result.loss,
        consumed={str(lane): span for lane, span in result.consumed.items()},
        train_seconds=train,
        sync_seconds=sync,
        wait_seconds=wait,
        compression=compression,
        payload_hash="",
        validation_loss=validation_loss if validation_loss is None or math.isfinite(validation_loss) else None,
        state=state,
    )
