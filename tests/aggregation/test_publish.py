"""Publishing: files that other programs load, once per version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as reference_load

from anabasis.errors import ObjectNotFound
from anabasis.storage import open_store, registry
from anabasis.storage.base import ObjectStore
from anabasis.training.publish import publish_model
from anabasis.training.recipe import load_recipe
from anabasis.training.replica import Replica
from tests.aggregation.world import NAME, World

torch.set_num_threads(1)


def published(world: World, version: int) -> tuple[ObjectStore, int]:
    root = open_store(world.url)
    result = publish_model(root, campaign=NAME, version=version, tick=lambda _: None)
    assert result.version == version
    return root, result.number


def test_the_published_files_rebuild_the_model(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    root, number = published(world, 2)
    model = registry.get_model(root, NAME, number)
    config = json.loads(root.get(model.files["config.json"].key))
    recipe = load_recipe(config["recipe"], config["recipe_options"])
    rebuilt = recipe.build_model(config["vocabulary_size"], config["sequence_length"])
    rebuilt.load_state_dict(reference_load(root.get(model.files["model.safetensors"].key)))
    flat = torch.cat([tensor.flatten() for tensor in rebuilt.state_dict().values()])
    assert torch.equal(flat, Replica.load(world.store, version=2).flat)


def test_it_is_evaluated_and_accounted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    root, number = published(world, 2)
    model = registry.get_model(root, NAME, number)
    assert model.validation_loss is not None
    assert 3 < model.validation_loss < 9
    assert model.tokens_total == world.newest.tokens_total == sum(model.contributors.values())
    assert set(model.contributors) == {"0-1", "1-1"}
    card = root.get(model.files["README.md"].key).decode()
    assert world.newest.fingerprint in card
    assert "0-1" in card


def test_publishing_again_is_the_same_model(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=3)
    root, first = published(world, 3)
    before = {info.key: info.etag for info in root.list("models/")}
    assert published(world, 3)[1] == first
    assert {info.key for info in root.list("models/")} == before.keys()
    assert published(world, 2)[1] == first + 1


def test_without_validation_samples_the_loss_is_not_measured(tmp_path: Path) -> None:
    world = World(tmp_path, data={"validation_samples": 0})
    root, number = published(world, 0)
    model = registry.get_model(root, NAME, number)
    assert model.validation_loss is None
    assert "not measured" in root.get(model.files["README.md"].key).decode()


def test_a_version_that_does_not_exist_is_not_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(ObjectNotFound):
        published(world, 7)
