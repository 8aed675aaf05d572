"""Updates on the wire."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as reference_load
from safetensors.torch import save as reference_save

from anabasis.errors import CorruptData
from anabasis.training import quantize, tensorfile
from anabasis.training.contribution import pack_contribution, payload_hash, unpack_contribution
from tests.aggregation.facts import a_header

torch.set_num_threads(1)

SIZES = [1, 5, 1023, 1024, 1025, 65_536, 70_000]


def noise(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 1e-3


@pytest.mark.parametrize("count", SIZES)
def test_the_error_is_at_most_half_a_level(count: int) -> None:
    update = noise(count)
    tensors = quantize.encode_update(update, compression="int8")
    decoded = quantize.decode_update(tensors, count)
    assert (update - decoded).abs().max() <= update.abs().max() / 127 / 2 * 1.001


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("compression", ["int8", "none"])
def test_what_is_lost_stays_with_the_sender(count: int, compression: quantize.Compression) -> None:
    update = noise(count)
    rest = update.clone()
    tensors = quantize.encode_in_place(rest, compression=compression)
    assert torch.equal(update - quantize.decode_update(tensors, count), rest)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("compression", ["int8", "none"])
def test_applying_is_decoding_and_subtracting(count: int, compression: quantize.Compression) -> None:
    flat, tensors = noise(count, seed=1), quantize.encode_update(noise(count), compression=compression)
    expected = flat - quantize.decode_update(tensors, count)
    quantize.subtract_update(flat, tensors)
    assert torch.equal(flat, expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=40))
def test_any_finite_update_survives(values: list[float]) -> None:
    update = torch.tensor(values, dtype=torch.float32)
    decoded = quantize.decode_update(quantize.encode_update(update, compression="int8"), len(values))
    assert torch.isfinite(decoded).all()
    assert (update - decoded).abs().max() <= max(update.abs().max().item() / 127, quantize.TINY)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("compression", ["int8", "none"])
def test_a_value_that_is_not_finite_shows_in_the_norm(poison: float, compression: quantize.Compression) -> None:
    update = noise(3_000)
    update[2_500] = poison
    tensors = quantize.encode_update(update, compression=compression)
    assert not math.isfinite(quantize.norm_of(tensors, count=3_000))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("compression", ["int8", "none"])
def test_the_norm_is_that_of_the_decoded_update(count: int, compression: quantize.Compression) -> None:
    tensors = quantize.encode_update(noise(count), compression=compression)
    expected = quantize.decode_update(tensors, count).double().norm().item()
    assert quantize.norm_of(tensors, count=count) == pytest.approx(expected, rel=1e-6)


def test_threads_change_no_bit() -> None:
    update, flat = noise(300_000), noise(300_000, seed=1)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        target = flat.clone()
        tensors = quantize.encode_update(update, compression="int8")
        quantize.subtract_update(target, tensors)
        results.append((payload_hash(tensors), quantize.norm_of(tensors, count=300_000), target))
    torch.set_num_threads(1)
    assert len({(digest, norm) for digest, norm, _ in results}) == 1
    assert all(torch.equal(results[0][2], target) for _, _, target in results)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"q": torch.zeros(10, dtype=torch.int8)},
        {"q": torch.zeros(10, dtype=torch.int8), "scale": torch.zeros(2)},
        {"q": torch.zeros(9, dtype=torch.int8), "scale": torch.zeros(1)},
        {"q": torch.zeros(10, dtype=torch.float64)},
    ],
)
def test_other_shapes_and_types_are_corrupt(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(CorruptData):
        quantize.check_update(tensors, count=10)


def test_contributions_come_back_as_they_went() -> None:
    tensors = quantize.encode_update(noise(5_000), compression="int8")
    data = pack_contribution(a_header(slot=3), tensors)
    header, found = unpack_contribution(data)
    assert header.slot == 3
    assert header.payload_hash == payload_hash(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("at", [0, 3, 40, 200, 300, 500, 3_000, -1])
def test_any_flipped_byte_is_noticed(at: int) -> None:
    data = bytearray(pack_contribution(a_header(), quantize.encode_update(noise(5_000), compression="int8")))
    data[at] ^= 0x55
    with pytest.raises(CorruptData):
        unpack_contribution(data)


@pytest.mark.parametrize("length", [0, 7, 8, 100, 2_000])
def test_any_torn_file_is_noticed(length: int) -> None:
    data = pack_contribution(a_header(), quantize.encode_update(noise(5_000), compression="int8"))
    with pytest.raises(CorruptData):
        unpack_contribution(data[:length])


def test_files_are_safetensors_in_both_directions() -> None:
    tensors = {
        "b": torch.arange(3),
        "a": torch.ones(5, dtype=torch.int8),
        "e": torch.zeros(0, 2),
        "s": torch.tensor(1.5),
    }
    ours = reference_load(tensorfile.pack(tensors, metadata={"k": "v"}))
    theirs, _ = tensorfile.unpack(reference_save(tensors))
    for found in (ours, theirs):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
