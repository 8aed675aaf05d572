"""The start of a campaign in the store."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anabasis.campaign.records import keys
from anabasis.errors import InvalidSpec
from anabasis.storage import open_store
from anabasis.storage.versions import read_spec, read_version
from anabasis.training.checkpointing import write_checkpoint
from anabasis.training.prepare import prepare_campaign
from anabasis.training.replica import Replica
from tests.aggregation.world import NAME, World, spec_for

torch.set_num_threads(1)


def quiet(_: str) -> None:
    pass


def test_it_writes_spec_data_and_version_0(tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri()).child(keys.campaign_root(NAME))
    result = prepare_campaign(store, spec_for(tmp_path), tick=quiet)
    assert (result.version, result.parameters, result.merged_rounds) == (0, 4_096, 0)
    manifest = read_version(store, 0)
    assert manifest.plan is not None
    assert manifest.offsets == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert Replica.load(store).version == 0
    assert read_spec(store) == spec_for(tmp_path)


def test_doing_it_again_changes_nothing_and_tells_where_the_campaign_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.seat(0, 1, attempts={"0": 3})
    world.aggregator(on_tick=world.nodes(0, 1)).advance(until_version=2)
    write_checkpoint(world.aggregator(), version=2, keep=2)
    world.store.put(keys.journal(4), b"{}")
    result = prepare_campaign(world.store, spec_for(tmp_path), tick=quiet)
    assert (result.version, result.merged_rounds, result.checkpoint_version) == (2, 2, 2)
    assert (result.roster_generation, result.attempts, result.journal_sequence) == (2, {"0": 3}, 5)
    assert result.tokens_total == world.newest.tokens_total > 0


def test_initial_parameters_follow_the_seed(tmp_path: Path) -> None:
    worlds = [World(tmp_path / str(i), training={"seed": seed}) for i, seed in enumerate((1, 1, 2))]
    prints = [world.newest.fingerprint for world in worlds]
    assert prints[0] == prints[1] != prints[2]


def test_a_begun_campaign_keeps_its_model_and_data(tmp_path: Path) -> None:
    world = World(tmp_path)
    changed = spec_for(
        tmp_path,
        recipe="gpt",
        recipe_options={"width": 8},
        data={"sequence_length": 32},
        training={"seed": 5, "inner_lr": 1.0},
    )
    with pytest.raises(InvalidSpec) as caught:
        prepare_campaign(world.store, changed, tick=quiet)
    assert [path for path, _ in caught.value.problems] == [
        "data.sequence_length",
        "recipe",
        "recipe_options.width",
        "training.seed",
    ]


def test_everything_else_may_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    changed = spec_for(tmp_path, fleet={"slots": 3}, training={"inner_lr": 1e-4}, target={"rounds": 99})
    prepare_campaign(world.store, changed, tick=quiet)
    assert read_spec(world.store) == changed
