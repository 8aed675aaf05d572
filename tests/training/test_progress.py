from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabasis.errors import UserCodeError
from anabasis.training import progress as module
from anabasis.training.progress import Meter, Progress, read_record, transfer_seconds, write_failure
from anabasis.training.user_code import MAX_TRACEBACK_CHARACTERS, user_code
from tests.support.wait import wait_until_sync


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(tmp_path: Path, clock: Clock) -> Progress:
    return Progress(tmp_path / "progress.json", clock=clock)


def record(progress: Progress) -> dict[str, Any]:
    return json.loads(progress.path.read_bytes())


def test_the_file_has_what_an_agent_needs(progress: Progress) -> None:
    progress.version, progress.generation = 7, 3
    progress.stepped(tokens=128)
    found = record(progress)
    assert found.pop("at") > 1e9
    assert found == {
        "pid": os.getpid(), "generation": 3, "ticks": 1, "steps": 1, "version": 7, "phase": "training", "tokens": 128,
    }  # fmt: skip


def test_writes_are_spared_but_a_new_phase_is_written_at_once(progress: Progress, clock: Clock) -> None:
    for _ in range(100):
        progress.tick("waiting")
    assert record(progress)["ticks"] == 1
    progress.tick("uploading")
    assert record(progress)["ticks"] == 101
    clock.now += 0.2
    progress.tick()
    assert record(progress)["ticks"] == 102


def test_ticks_grow_over_restarts(progress: Progress) -> None:
    progress.tick("starting")
    progress.tick("waiting")
    assert Progress(progress.path).ticks == 2


def test_a_full_or_lost_disk_does_not_end_the_training(progress: Progress) -> None:
    shutil.rmtree(progress.path.parent)
    progress.tick("training")
    write_failure(progress.path.with_name("failure.json"), ValueError("x"))


def test_a_long_call_is_vouched_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VOUCH_EVERY_SECONDS", 0.01)
    progress = Progress(tmp_path / "progress.json")
    with progress.vouched(3_600):
        wait_until_sync(lambda: progress.ticks >= 3, seconds=20)
    clock = Clock()
    trusted = Progress(tmp_path / "other.json", clock=clock)
    with trusted.vouched(60):
        wait_until_sync(lambda: trusted.ticks >= 3, seconds=20)
        clock.now += 61
        before = -1

        def stands_still() -> bool:
            nonlocal before
            same, before = before == trusted.ticks, trusted.ticks
            return same

        wait_until_sync(stands_still, seconds=20, every=0.1)


def test_large_transfers_may_take_longer() -> None:
    assert transfer_seconds(0) == 60
    assert transfer_seconds(250_000_000) == 60 + 1_000


def test_every_second_is_in_one_bucket(clock: Clock) -> None:
    meter = Meter(clock=clock)
    for what, seconds in (("train", 5.0), ("wait", 2.0), ("sync", 1.0), ("train", 3.0)):
        if what == "wait":
            clock.now += seconds
            continue
        with meter.timing("train" if what == "train" else "sync"):
            clock.now += seconds
    assert meter.take() == (8.0, 1.0, 2.0)
    clock.now += 4.0
    assert meter.take() == (0.0, 0.0, 4.0)


def test_time_counts_also_when_the_work_fails(clock: Clock) -> None:
    meter = Meter(clock=clock)

    def fail() -> None:
        with meter.timing("train"):
            clock.now += 5
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert meter.take() == (5.0, 0.0, 0.0)


def test_a_failure_says_whose_it_is_and_where(tmp_path: Path) -> None:
    path = tmp_path / "failure.json"
    with pytest.raises(UserCodeError) as caught, user_code("loss"):
        raise KeyError("batch")
    write_failure(path, caught.value)
    found = read_record(path)
    assert found["type"] == "UserCodeError"
    assert found["message"] == "loss raised KeyError: 'batch'"
    assert 'raise KeyError("batch")' in found["traceback"]


def test_the_first_of_several_verdicts_stands(tmp_path: Path) -> None:
    path = tmp_path / "failure.json"
    write_failure(path, UserCodeError("first"))
    write_failure(path, RuntimeError("connection closed by peer"))
    assert read_record(path)["message"] == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["failure.json"]


def test_long_tracebacks_are_cut_at_their_beginning(tmp_path: Path) -> None:
    write_failure(tmp_path / "failure.json", RuntimeError("x" * 50_000 + "end"))
    found = read_record(tmp_path / "failure.json")
    assert len(found["traceback"]) <= MAX_TRACEBACK_CHARACTERS + 1
    assert found["traceback"].rstrip().endswith("end")
    assert found["type"] == "InternalError"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    writer = (
        "import sys; from pathlib import Path; from anabasis.training.progress import Progress\n"
        "clock = iter(range(10**9)).__next__\n"
        "progress = Progress(Path(sys.argv[1]), clock=clock)\n"
        "for _ in range(3000): progress.tick('training')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", writer, str(path)])
    seen = 0
    while process.poll() is None:
        if path.exists():
            json.loads(path.read_bytes())
            seen += 1
    assert process.returncode == 0
    assert seen > 10
