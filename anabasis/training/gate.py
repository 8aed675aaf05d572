"""Whether a contribution may be merged: pure checks of its accounting and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from anabasis.campaign.records import ContributionHeader, VersionManifest
from anabasis.errors import CorruptData
from anabasis.training.quantize import check_update

Reason = Literal["corrupt", "not_finite", "norm", "wrong_base", "offsets", "fenced", "shape"]

Problem = tuple[Reason, str]


def check_header(header: ContributionHeader, *, manifest: VersionManifest, sequence_length: int) -> Problem | None:
    """What is wrong with a contribution to the round that starts at `manifest`, or None."""
    if (header.campaign, header.base_version, header.base_chain) != (
        manifest.campaign,
        manifest.version,
        manifest.chain,
    ):
        return "wrong_base", (
            f"trained from version {header.base_version} ({header.base_chain[:12]}) of {header.campaign}; "
            f"this round starts at {manifest.version} ({manifest.chain[:12]}) of {manifest.campaign}"
        )
    if not math.isfinite(header.loss):
        return "not_finite", f"loss is {header.loss}"
    seconds = (header.train_seconds, header.sync_seconds, header.wait_seconds)
    if not all(math.isfinite(value) and value >= 0 for value in seconds) or header.steps < 1:
        return "corrupt", f"{header.steps} steps in {seconds} seconds (train, sync, wait) is impossible"
    return _check_offsets(header, manifest=manifest, sequence_length=sequence_length)


def _check_offsets(header: ContributionHeader, *, manifest: VersionManifest, sequence_length: int) -> Problem | None:
    """Samples must follow on those committed, in the slot's own partitions, and add up to the tokens."""
    plan = manifest.plan
    assignment = plan.assignments.get(str(header.slot)) if plan else None
    if assignment is None:
        return "offsets", f"slot {header.slot} sits this round out"
    samples = 0
    for partition, (first, end) in header.consumed.items():
        if not partition.isdecimal() or int(partition) not in assignment.partitions:
            return "offsets", f"partition {partition} is not slot {header.slot}'s"
        committed = manifest.offsets.get(partition, 0)
        if first != committed or end < first:
            return "offsets", f"partition {partition}: samples {first}..{end}, but {committed} are committed"
        samples += end - first
    if samples < 1 or header.tokens != samples * sequence_length:
        return "offsets", f"{samples} samples of {sequence_length} tokens are not {header.tokens} tokens"
    return None


def check_numbers(tensors: Mapping[str, Tensor], *, count: int) -> Problem | None:
    """What is wrong with an update of `count` parameters, or None."""
    try:
        compression = check_update(tensors, count=count)
    except CorruptData as error:
        return "shape", str(error)
    # An int8 update is finite exactly when its scales are (and every value of q is a number).
    values = tensors["q"] if compression == "none" else tensors["scale"]
    return None if bool(torch.isfinite(values).all()) else ("not_finite", "the update has values that are not finite")


def norm_outliers(norms: Mapping[int, float], *, norm_factor: float) -> dict[int, Problem]:
    """Slots whose norm exceeds a multiple of the round's median (which a single outlier cannot move)."""
    middle = median(norms.values()) if norms else 0.0
    return {
        slot: ("norm", f"norm {norm:.4g} is more than {norm_factor:g} times the round's median {middle:.4g}")
        for slot, norm in norms.items()
        if middle > 0 and norm > norm_factor * middle
    }


def token_weights(headers: Mapping[int, ContributionHeader]) -> dict[int, float]:
    """Weights by slot, in proportion to tokens; they sum to 1."""
    total = sum(header.tokens for header in headers.values())
    return {slot: header.tokens / total for slot, header in headers.items()}
