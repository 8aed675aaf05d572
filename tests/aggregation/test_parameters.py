"""A model as a flat vector."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load as reference_load
from torch import nn

from anabasis.errors import CorruptData
from anabasis.training import parameters

torch.set_num_threads(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))


def test_tied_tensors_appear_once_and_integers_not_at_all() -> None:
    layout = parameters.layout_of(Tied())
    assert [entry.name for entry in layout] == [
        "embed.weight",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
    ]
    assert [entry.offset for entry in layout] == [0, 35, 40, 45, 50]
    assert parameters.count_of(layout) == 55


def test_a_model_goes_to_a_vector_and_back() -> None:
    torch.manual_seed(0)
    source, target = Tied(), Tied()
    flat = parameters.flatten(source)
    parameters.load_flat(target, flat)
    assert torch.equal(target.head.weight, source.embed.weight)
    assert parameters.fingerprint(parameters.flatten(target)) == parameters.fingerprint(flat)


def test_half_precision_models_are_float32_in_the_vector() -> None:
    model = Tied().to(torch.bfloat16)
    flat = parameters.flatten(model)
    assert flat.dtype == torch.float32
    parameters.load_flat(model, flat)
    assert torch.equal(parameters.flatten(model), flat)


def test_a_vector_of_another_model_is_refused() -> None:
    with pytest.raises(CorruptData, match="55"):
        parameters.load_flat(Tied(), torch.zeros(54))


def test_negative_zeros_do_not_survive() -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(-0.0)
    assert parameters.fingerprint(parameters.flatten(model)) == parameters.fingerprint(torch.zeros(2))


def test_one_changed_bit_changes_the_fingerprint() -> None:
    flat = torch.zeros(5_000)
    before = parameters.fingerprint(flat)
    flat.view(torch.int32)[4_999] = 1
    assert parameters.fingerprint(flat) != before


def test_an_image_is_a_safetensors_file_of_the_named_tensors() -> None:
    model = Tied()
    image = parameters.ParameterImage(parameters.layout_of(model))
    image.flat.copy_(parameters.flatten(model))
    named = reference_load(bytes(image.file()))
    assert torch.equal(named["embed.weight"], model.embed.weight)
    assert image.blocks.numel() == 1024
    assert not image.blocks[55:].any()
    other = parameters.ParameterImage(image.layout)
    other.load(bytes(image.file()))
    assert torch.equal(other.flat, image.flat)


def test_a_snapshot_of_another_layout_is_refused() -> None:
    image = parameters.ParameterImage(parameters.layout_of(Tied()))
    other = parameters.ParameterImage(parameters.layout_of(nn.Linear(3, 3)))
    with pytest.raises(CorruptData):
        image.load(bytes(other.file()))
