"""The trainer as a process: files, exit codes, signals, and what survives when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabasis.campaign.records import keys
from anabasis.storage.versions import audit_offsets, newest_version, read_version
from anabasis.training.aggregator import Interrupted
from anabasis.training.trainer import EXIT_FAILED, EXIT_FENCED, EXIT_OK
from tests.aggregation.world import NAME, World
from tests.support.processes import Process, Processes, process_exists
from tests.support.wait import wait_until_sync
from tests.training.stage import finish, learnable, mail_of

SECONDS = 60.0
"""For a trainer to start and do something on a loaded machine."""


class Trainers:
    """Starts trainers of a world."""

    def __init__(self, world: World, processes: Processes) -> None:
        self.world = world
        self.processes = processes

    def start(self, *, slot: int = 0, attempt: int = 1, **changes: Any) -> Process:
        folder = self.folder(slot, attempt)
        folder.mkdir(exist_ok=True)
        config = {
            "campaign": NAME, "slot": slot, "attempt": attempt, "nonce": f"n{slot}-{attempt}",
            "store_url": self.world.url, "work_dir": str(folder),
        }  # fmt: skip
        path = folder / "trainer.json"
        path.write_text(json.dumps({**config, **changes}))
        return self.processes.python("-m", "anabasis.training.trainer", "--config", str(path), name="trainer")

    def folder(self, slot: int = 0, attempt: int = 1) -> Path:
        return self.world.folder / f"node-{slot}-{attempt}"

    def progress(self, slot: int = 0, attempt: int = 1) -> dict[str, Any]:
        try:
            return json.loads((self.folder(slot, attempt) / "progress.json").read_bytes())
        except FileNotFoundError:
            return {}

    def failure(self) -> dict[str, Any]:
        return json.loads((self.folder() / "failure.json").read_bytes())

    def wait_for(self, process: Process, *, child: bool = False, **wanted: Any) -> dict[str, Any]:
        """Until the progress of this process (or its child) has these values (numbers: at least)."""

        def reached() -> dict[str, Any] | None:
            assert process.alive, process.text()[-4000:]
            found = self.progress()
            ok = (child or found.get("pid") == process.pid) and all(
                found.get(name, -1) >= value if isinstance(value, int) else found.get(name) == value
                for name, value in wanted.items()
            )
            return found if ok else None

        return wait_until_sync(reached, seconds=SECONDS, what=f"progress {wanted}") or {}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return learnable(tmp_path / "world")


@pytest.fixture
def trainers(world: World, processes: Processes) -> Trainers:
    return Trainers(world, processes)


@contextmanager
def aggregating(world: World, *, until: int = 1_000_000) -> Iterator[None]:
    """An aggregator in a thread of this process, for as long as the context lasts."""
    over = threading.Event()

    def tick(reason: str) -> None:
        if over.is_set():
            raise Interrupted(reason)

    def run() -> None:
        world.aggregator(on_tick=tick, sleep=lambda seconds: over.wait(min(seconds, 0.02))).advance(until_version=until)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def reach(world: World, version: int) -> None:
    wait_until_sync(lambda: (newest_version(world.store) or 0) >= version, seconds=SECONDS, what=f"version {version}")


def test_a_trainer_takes_part_until_the_campaign_is_finished(world: World, trainers: Trainers) -> None:
    process = trainers.start()
    with aggregating(world):
        reach(world, 4)
        finish(world)
        assert process.wait(seconds=SECONDS) == EXIT_OK
    found = trainers.progress()
    assert found["phase"] == "finished"
    assert found["pid"] == process.pid
    assert found["version"] >= 3
    assert found["steps"] >= 40
    assert found["tokens"] == found["steps"] * 4 * 16
    assert found["generation"] == 2
    assert found["ticks"] > found["steps"]
    assert not (trainers.folder() / "failure.json").exists()
    assert audit_offsets(world.store) == []


def test_a_killed_trainer_is_replaced_and_no_sample_is_lost(world: World, trainers: Trainers) -> None:
    with aggregating(world):
        for restart in range(2):
            process = trainers.start()
            reach(world, 3 * (restart + 1))
            process.kill()
        ticks = trainers.progress()["ticks"]
        process = trainers.start()
        reach(world, 9)
        finish(world)
        assert process.wait(seconds=SECONDS) == EXIT_OK
    assert trainers.progress()["ticks"] > ticks
    assert audit_offsets(world.store) == []


def test_a_trainer_killed_after_its_upload_does_not_train_the_round_again(world: World, trainers: Trainers) -> None:
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", steps=10)
    sent = mail_of(world, 0)
    process.kill()
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", version=0)
    assert trainers.progress()["steps"] == 0
    assert mail_of(world, 0) == sent


def test_mail_that_is_deleted_is_sent_again(world: World, trainers: Trainers) -> None:
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", steps=10)
    sent = world.store.get(keys.mail(0, 0, 1))
    world.store.delete(keys.mail(0, 0, 1))
    wait_until_sync(lambda: world.store.head(keys.mail(0, 0, 1)), seconds=SECONDS)
    assert world.store.get(keys.mail(0, 0, 1)) == sent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_politely(tmp_path: Path, processes: Processes, number: int) -> None:
    world = learnable(
        tmp_path / "world",
        recipe="tests.support.recipes:Slow",
        recipe_options={"seconds_per_step": 0.05},
        training={"inner_steps": 100_000},
    )
    trainers = Trainers(world, processes)
    process = trainers.start()
    trainers.wait_for(process, phase="training", steps=3)
    process.signal(number)
    assert process.wait(seconds=SECONDS) == EXIT_OK
    assert trainers.progress()["phase"] == "stopped"
    assert mail_of(world, 0).steps == trainers.progress()["steps"], "what was done is handed over"


def test_a_recipe_that_raises_leaves_its_traceback(tmp_path: Path, processes: Processes) -> None:
    world = learnable(tmp_path / "world", recipe="tests.support.recipes:Raising", recipe_options={"from_call": 3})
    trainers = Trainers(world, processes)
    process = trainers.start()
    assert process.wait(seconds=SECONDS) == EXIT_FAILED
    failure = trainers.failure()
    assert failure["type"] == "UserCodeError"
    assert failure["message"] == "loss raised ZeroDivisionError: the recipe divides by zero"
    assert "in misbehave" in failure["traceback"]
    assert trainers.progress()["phase"] == "failed"
    assert trainers.progress()["steps"] == 2
    process = trainers.start()  # the next life starts without the old verdict
    assert process.wait(seconds=SECONDS) == EXIT_FAILED


def test_a_newer_node_in_the_slot_ends_it(world: World, trainers: Trainers) -> None:
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", steps=10)
    world.seat(0, attempt=2)
    assert process.wait(seconds=SECONDS) == EXIT_FENCED
    assert trainers.progress()["phase"] == "fenced"
    assert not (trainers.folder() / "failure.json").exists()


def test_only_one_trainer_works_in_a_directory(world: World, trainers: Trainers) -> None:
    first = trainers.start()
    trainers.wait_for(first, phase="waiting", steps=10)
    second = trainers.start()
    assert second.wait(seconds=SECONDS) == EXIT_FENCED
    assert first.alive
    assert trainers.progress()["pid"] == first.pid


def test_a_trainer_dies_with_the_agent_that_started_it(world: World, trainers: Trainers, processes: Processes) -> None:
    trainers.start().kill()  # writes the config
    config = trainers.folder() / "trainer.json"
    agent = processes.python(
        "-c",
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-m', 'anabasis.training.trainer', '--config', {str(config)!r}])\n"
        "time.sleep(600)",
        name="agent",
    )
    pid = trainers.wait_for(agent, child=True, phase="waiting", steps=10)["pid"]
    assert process_exists(pid)
    agent.kill()
    wait_until_sync(lambda: not process_exists(pid), seconds=SECONDS)


def test_a_config_that_is_wrong_is_a_verdict(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "trainer.json").write_text('{"campaign": "x"}')
    for path in (tmp_path / "trainer.json", tmp_path / "missing.json"):
        process = processes.python("-m", "anabasis.training.trainer", "--config", str(path), name="trainer")
        assert process.wait(seconds=SECONDS) == EXIT_FAILED
        assert "trainer_config" in process.text()


def test_a_node_that_is_up_before_the_campaign_is_prepared_waits(tmp_path: Path, processes: Processes) -> None:
    world = World.__new__(World)
    world.folder, world.url = tmp_path / "world", (tmp_path / "world" / "store").as_uri()
    world.folder.mkdir()
    trainers = Trainers(world, processes)
    process = trainers.start()
    trainers.wait_for(process, phase="waiting", ticks=3)
    prepared = learnable(tmp_path / "world")
    trainers.wait_for(process, phase="waiting", steps=10)
    assert mail_of(prepared, 0).slot == 0


@pytest.mark.slow
def test_a_deterministic_campaign_is_the_same_bits_however_often_it_is_killed(
    tmp_path: Path, processes: Processes
) -> None:
    def run(folder: Path, *, kills: int) -> str:
        world = learnable(
            folder,
            recipe="gpt",
            recipe_options={"layers": 1, "width": 16, "heads": 2, "dropout": 0.1},
            training={"deterministic": True, "outer_momentum": 0.9},
        )
        trainers = Trainers(world, processes)
        with aggregating(world, until=6):
            for kill in range(kills):
                process = trainers.start(attempt=kill + 1)
                reach(world, 2 * kill + 1)
                process.kill()
                world.seat(0, attempt=kill + 2)
            process = trainers.start(attempt=kills + 1)
            reach(world, 6)
            process.kill()
        return read_version(world.store, 6).fingerprint

    assert run(tmp_path / "a", kills=0) == run(tmp_path / "b", kills=2)


def test_importing_the_trainer_is_quick_and_leaves_the_cloud_out() -> None:
    program = (
        "import sys, anabasis.training.trainer\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'boto3', 'temporalio', 'smart_open'}))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, env=os.environ)
    assert found.stdout.strip() == ""
