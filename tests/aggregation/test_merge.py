"""The merge against a plain reference, and the promise of equal bits."""

from __future__ import annotations

import math

import pytest
import torch

from anabasis.campaign.records import TensorLayout
from anabasis.errors import CorruptData, Diverged
from anabasis.training import merge
from anabasis.training.contribution import unpack_delta
from anabasis.training.merge import Merger, Weighted
from anabasis.training.outer import OuterState
from anabasis.training.parameters import ParameterImage, fingerprint
from anabasis.training.quantize import Compression, decode_update, encode_update, subtract_update

torch.set_num_threads(1)

SIZES = [1, 1_023, 1_024, 5_000, 70_001]


def a_state(count: int) -> tuple[ParameterImage, OuterState]:
    image = ParameterImage([TensorLayout(name="w", shape=[count], offset=0)])
    image.flat.copy_(torch.randn(count, generator=torch.Generator().manual_seed(1)))
    return image, OuterState(count)


def updates(count: int, *, how_many: int, seed: int = 0, compression: Compression = "int8") -> list[Weighted]:
    made = torch.Generator().manual_seed(seed)
    weights = [rank + 1.0 for rank in range(how_many)]
    return [
        Weighted(
            encode_update(torch.randn(count, generator=made) * 1e-3, compression=compression), weight / sum(weights)
        )
        for weight in weights
    ]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0), (1.0, 0.5)])
def test_it_is_torchs_nesterov_up_to_what_quantisation_keeps_back(count: int, lr: float, momentum: float) -> None:
    image, outer = a_state(count)
    merger = Merger(count, compression="int8")
    reference = torch.nn.Parameter(image.flat.clone())
    optimizer = torch.optim.SGD([reference], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for number in range(4):
        items = updates(count, how_many=3, seed=number)
        reference.grad = sum(item.weight * decode_update(item.tensors, count) for item in items)  # type: ignore[assignment]
        optimizer.step()
        merger.step(image, outer, items, lr=lr, momentum=momentum)
        exact = image.flat - outer.residual[:count]
        assert torch.allclose(exact, reference.detach(), atol=1e-6)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("compression", ["int8", "none"])
def test_a_reader_of_the_delta_gets_the_same_bits(count: int, compression: Compression) -> None:
    image, outer = a_state(count)
    reader = image.flat.clone()
    merger = Merger(count, compression=compression)
    for number in range(3):
        delta = merger.step(image, outer, updates(count, how_many=2, seed=number), lr=0.7, momentum=0.9)
        subtract_update(reader, unpack_delta(bytes(delta)))
        assert fingerprint(reader) == fingerprint(image.flat)


def test_uncompressed_deltas_leave_no_residual() -> None:
    image, outer = a_state(5_000)
    items = updates(5_000, how_many=2, compression="none")
    Merger(5_000, compression="none").step(image, outer, items, lr=0.7, momentum=0.9)
    assert not outer.residual.any()


def test_threads_and_ranges_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    count, results = 150_001, set()
    for threads, blocks in [(1, 512), (2, 512), (3, 7), (1, 1)]:
        torch.set_num_threads(threads)
        monkeypatch.setattr(merge, "RANGE", blocks * 1024)
        image, outer = a_state(count)
        merger = Merger(count, compression="int8")
        for number in range(2):
            delta = merger.step(image, outer, updates(count, how_many=3, seed=number), lr=0.7, momentum=0.9)
        results.add((fingerprint(image.flat), fingerprint(outer.momentum), fingerprint(outer.residual), bytes(delta)))
    torch.set_num_threads(1)
    assert len(results) == 1


def test_padding_stays_zero() -> None:
    image, outer = a_state(1_500)
    Merger(1_500, compression="int8").step(image, outer, updates(1_500, how_many=1), lr=1.0, momentum=0.5)
    assert not image.blocks[1_500:].any()
    assert not outer.momentum[1_500:].any()
    assert not outer.residual[1_500:].any()


@pytest.mark.parametrize("compression", ["int8", "none"])
def test_a_step_that_is_not_finite_is_divergence(compression: Compression) -> None:
    image, outer = a_state(5_000)
    outer.momentum[3_000] = math.inf
    with pytest.raises(Diverged):
        Merger(5_000, compression=compression).step(image, outer, updates(5_000, how_many=1), lr=0.7, momentum=0.9)


def test_a_contribution_of_another_model_changes_nothing() -> None:
    image, outer = a_state(5_000)
    before = fingerprint(image.flat)
    with pytest.raises(CorruptData):
        Merger(5_000, compression="int8").step(image, outer, updates(5_001, how_many=1), lr=0.7, momentum=0.9)
    assert fingerprint(image.flat) == before


def test_outer_state_comes_back_from_its_file() -> None:
    image, outer = a_state(5_000)
    Merger(5_000, compression="int8").step(image, outer, updates(5_000, how_many=1), lr=0.7, momentum=0.9)
    other = OuterState(5_000)
    other.load(bytes(outer.file()))
    assert torch.equal(other.momentum, outer.momentum)
    assert torch.equal(other.residual, outer.residual)
    with pytest.raises(CorruptData):
        OuterState(4_999).load(bytes(outer.file()))
