"""Nodes of several processes: the same result as one process, one verdict, one end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from anabasis.training.parameters import named_views
from anabasis.training.replica import Replica
from anabasis.training.trainer import EXIT_FAILED, EXIT_INTERNAL, EXIT_OK
from tests.aggregation.world import World
from tests.support.processes import Processes, process_exists
from tests.support.wait import wait_until_sync
from tests.training.stage import finish, learnable
from tests.training.test_trainer import SECONDS, Trainers, aggregating, reach

pytestmark = pytest.mark.slow

GPT: dict[str, Any] = {"recipe": "gpt", "recipe_options": {"layers": 1, "width": 16, "heads": 2}}


def world_of(folder: Path, *, processes: int, **sections: Any) -> World:
    training = {"processes_per_node": processes, "batch_size": 5, "inner_steps": 6, **sections.pop("training", {})}
    return learnable(folder, training=training, **sections)


def ranks_of(pid: int) -> list[int]:
    """Of the processes that train; torchrun, between them and the trainer, is none."""
    family = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in family if "--rank" in child.cmdline() and "--nnodes=1" not in child.cmdline()]


def trained(folder: Path, processes: Processes, *, size: int) -> Replica:
    world = world_of(folder, processes=size, **GPT)
    trainers = Trainers(world, processes)
    with aggregating(world, until=3):
        process = trainers.start()
        reach(world, 3)
        finish(world)
        assert process.wait(seconds=SECONDS) == EXIT_OK
    found = trainers.progress()
    assert found["phase"] == "finished"
    assert found["pid"] == process.pid
    assert found["tokens"] == found["steps"] * 5 * 16
    return Replica.load(world.store, version=3)


def test_two_processes_train_what_one_trains(tmp_path: Path, processes: Processes) -> None:
    """Uneven parts of a batch included; gradients are added in another order, hence the tolerance."""
    one, two = (trained(tmp_path / str(size), processes, size=size) for size in (1, 2))
    assert one.manifest.loss == pytest.approx(two.manifest.loss, rel=1e-3)
    assert one.manifest.offsets == two.manifest.offsets
    start = Replica.load(World(tmp_path / "1").store, version=0)
    for name, tensor in named_views(one.flat, one.layout).items():
        moved = (tensor - named_views(start.flat, one.layout)[name]).norm()
        apart = (tensor - named_views(two.flat, one.layout)[name]).norm()
        assert apart <= 0.05 * moved + 1e-6, name


def test_they_stop_together_and_hand_over_what_is_done(tmp_path: Path, processes: Processes) -> None:
    world = world_of(
        tmp_path / "w",
        processes=2,
        recipe="tests.support.recipes:Slow",
        recipe_options={"seconds_per_step": 0.05},
        training={"inner_steps": 100_000},
    )
    trainers = Trainers(world, processes)
    process = trainers.start()
    trainers.wait_for(process, phase="training", steps=3)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    process.signal(signal.SIGTERM)
    assert process.wait(seconds=SECONDS) == EXIT_OK
    assert trainers.progress()["phase"] == "stopped"
    assert world.store.list("mail/000000/")
    assert not any(process_exists(rank) for rank in ranks)


def test_when_one_dies_all_end_without_a_verdict(tmp_path: Path, processes: Processes) -> None:
    world = world_of(tmp_path / "w", processes=2)
    trainers = Trainers(world, processes)
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", steps=6)
    ranks = ranks_of(process.pid)
    os.kill(ranks[1], signal.SIGKILL)
    assert process.wait(seconds=SECONDS) == EXIT_INTERNAL
    assert not any(process_exists(rank) for rank in ranks)
    assert not (trainers.folder() / "failure.json").exists()


def test_when_the_trainer_is_killed_all_die(tmp_path: Path, processes: Processes) -> None:
    world = world_of(tmp_path / "w", processes=2)
    trainers = Trainers(world, processes)
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", steps=6)
    family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(family) >= 3
    process.kill()
    wait_until_sync(lambda: not any(process_exists(pid) for pid in family), seconds=SECONDS)


def test_a_recipe_that_raises_gives_one_verdict(tmp_path: Path, processes: Processes) -> None:
    world = world_of(tmp_path / "w", processes=2, recipe="tests.support.recipes:Raising")
    trainers = Trainers(world, processes)
    process = trainers.start()
    assert process.wait(seconds=SECONDS) == EXIT_FAILED
    assert trainers.failure()["type"] == "UserCodeError"
    assert "divides by zero" in trainers.failure()["message"]


def test_a_batch_smaller_than_the_team_is_the_specs_problem(tmp_path: Path, processes: Processes) -> None:
    world = world_of(tmp_path / "w", processes=2, training={"batch_size": 1})
    trainers = Trainers(world, processes)
    process = trainers.start()
    assert process.wait(seconds=SECONDS) == EXIT_FAILED
    assert trainers.failure()["type"] == "InvalidSpec"
    assert "training.batch_size" in trainers.failure()["message"]
