"""The trainer process: `python -m anabasis.training.trainer --config trainer.json`.

The node agent starts it, and reads `progress.json` and `failure.json` in the work directory. Exit codes:

    0   the campaign is finished (phase `finished`), or SIGTERM was obeyed (phase `stopped`)
    3   it cannot go on; failure.json says why (a recipe that raised: type `UserCodeError`, with the traceback)
    4   another node holds the slot now, or another trainer this work directory (phase `fenced`)
    1   a mistake of ours; failure.json has type `InternalError`

Anything else is a crash. It never ends because the store does not answer: it waits (phase `store_unavailable`).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from anabasis import logs
from anabasis.campaign.records import RosterMember, keys
from anabasis.errors import AnabasisError, Fenced, InvalidSpec
from anabasis.training.launch import PID_VARIABLE, RanksFailed, launch
from anabasis.training.progress import INTERNAL_ERROR, Phase, Progress, read_record, write_failure
from anabasis.training.tether import die_with_parent

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_FAILED = 3
EXIT_FENCED = 4

PREPARED_POLL_SECONDS = 0.5
"""Between looks whether the campaign is prepared, when a node is faster than its preparation."""

LOCK_SECONDS = 5.0
"""For an earlier trainer in the same work directory to end: the kernel kills it together with its agent."""

CACHE_VARIABLE = "ANABASIS_CACHE"
HOME_VARIABLE = "ANABASIS_HOME"

_log = structlog.get_logger(__name__)


class TrainerConfig(BaseModel):
    """What the agent writes into `trainer.json`; everything else is in the campaign's store.

    Attributes:
        work_dir: of this node, for progress, failure and lock.
        cache_dir: for shards, shared by all trainers of the machine; None: `$ANABASIS_CACHE`, else `cache` in
            `$ANABASIS_HOME`.
        parent_pid: of the agent; the trainer ends at once if its parent is another one by now.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    campaign: str
    slot: int
    attempt: int
    nonce: str
    store_url: str
    work_dir: Path
    cache_dir: Path | None = None
    parent_pid: int | None = None

    @property
    def member(self) -> RosterMember:
        return RosterMember(slot=self.slot, attempt=self.attempt, nonce=self.nonce)

    @property
    def cache(self) -> Path:
        if self.cache_dir is not None:
            return self.cache_dir
        if os.environ.get(CACHE_VARIABLE):
            return Path(os.environ[CACHE_VARIABLE])
        return Path(os.environ.get(HOME_VARIABLE) or ".anabasis").expanduser().absolute() / "cache" / "shards"


def read_config(path: Path) -> TrainerConfig:
    """The config file.

    Raises:
        InvalidSpec: it is missing or has problems.
    """
    try:
        return TrainerConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidSpec([(str(path), f"cannot be read: {error.strerror or error}")]) from None
    except ValidationError as error:
        found = [(".".join(map(str, item["loc"])) or str(path), item["msg"]) for item in error.errors()]
        raise InvalidSpec(found) from None


class StopFlag:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once.

    A plain flag: a handler that locked anything could deadlock with the code that it interrupts.
    """

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        return self.requested

    def _on_signal(self, number: int, _: object) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True


def train(config: TrainerConfig, *, config_path: Path, progress: Progress, stop: StopFlag, rank_mode: bool) -> Phase:
    """Take part in the campaign until its end or a signal.

    Args:
        rank_mode: this is one of the processes that torchrun started for a node of several.

    Returns:
        `finished` or `stopped`.
    """
    from anabasis.storage import open_store
    from anabasis.training.inner import prepare_torch
    from anabasis.training.node_loop import NodeLoop
    from anabasis.training.node_setup import build_trainer, wait_for_campaign
    from anabasis.training.patience import Interrupted, Patience
    from anabasis.training.team import Solo, Team

    patience = Patience(progress, stop=stop)
    plain = open_store(config.store_url).child(keys.campaign_root(config.campaign))
    store = patience.resilient(plain)
    try:
        spec, dataset = wait_for_campaign(store, pause=lambda: patience.pause(PREPARED_POLL_SECONDS, "waiting"))
    except Interrupted:
        return "stopped"
    processes = spec.training.processes_per_node
    if processes > 1 and not rank_mode:
        return launch(config_path, work_dir=config.work_dir, processes=processes, stop=stop)
    prepare_torch(spec.training)
    team: Team = Solo()
    if rank_mode:
        from anabasis.training.distributed import ProcessTeam, follow

        team = ProcessTeam.joined(spec.training)
        if team.rank > 0:
            trainer = build_trainer(store, spec=spec, dataset=dataset, cache_dir=config.cache, team=team)
            follow(trainer, team)
            return "stopped"
    loop = NodeLoop(
        plain, spec=spec, dataset=dataset, member=config.member, patience=patience, cache_dir=config.cache, team=team
    )
    return loop.run()


def main(arguments: list[str] | None = None) -> int:
    """Run as a process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="anabasis.training.trainer", description="The trainer of one node.")
    parser.add_argument("--config", required=True, type=Path, help="trainer.json as the agent writes it")
    parser.add_argument("--rank", action="store_true", help="one of a node's processes, started by torchrun")
    options = parser.parse_args(arguments)
    logs.configure()
    try:
        config = read_config(options.config)
    except InvalidSpec as error:
        _log.error("trainer_config", reason=str(error))
        return EXIT_FAILED
    die_with_parent(None if options.rank else config.parent_pid)
    stop = StopFlag()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    structlog.contextvars.bind_contextvars(campaign=config.campaign, node=f"{config.slot}-{config.attempt}")
    if options.rank:
        return _run(config, config_path=options.config, stop=stop, rank=int(os.environ["RANK"]))
    try:
        with _only_one(config.work_dir / "trainer.lock"):
            (config.work_dir / "failure.json").unlink(missing_ok=True)
            return _run(config, config_path=options.config, stop=stop, rank=None)
    except Fenced as error:  # another trainer has the directory: its files are not ours to write
        _log.error("fenced", reason=str(error))
        return EXIT_FENCED


def _run(config: TrainerConfig, *, config_path: Path, stop: StopFlag, rank: int | None) -> int:
    """Train, and turn whatever happens into files and an exit code.

    Args:
        rank: of this process in a node of several; None for the process that the agent started.
    """
    pid = int(os.environ.get(PID_VARIABLE) or os.getpid()) if rank is not None else os.getpid()
    progress = Progress(config.work_dir / (f"rank-{rank}.json" if rank else "progress.json"), pid=pid)
    failure = config.work_dir / "failure.json"
    progress.tick("starting")
    try:
        phase = train(config, config_path=config_path, progress=progress, stop=stop, rank_mode=rank is not None)
    except RanksFailed as error:  # they have written progress and failure themselves
        _log.error("ranks_failed", reason=str(error))
        kind = read_record(failure).get("type", INTERNAL_ERROR)
        return EXIT_INTERNAL if kind == INTERNAL_ERROR else EXIT_FAILED
    except Fenced as error:
        _log.warning("fenced", reason=str(error))
        _close(progress, "fenced")
        return EXIT_FENCED
    except Exception as error:  # the process's boundary: whatever it was must reach the agent
        expected = isinstance(error, AnabasisError)
        _log.error("trainer_failed", error=type(error).__name__, reason=str(error), exc_info=not expected)
        if expected or rank is None:  # among several, it is most likely the death of another one
            write_failure(failure, error)
        progress.tick("failed")
        return EXIT_FAILED if expected else EXIT_INTERNAL
    _close(progress, phase)
    _log.info("trainer_done", phase=phase, version=progress.version, steps=progress.steps)
    return EXIT_OK


def _close(progress: Progress, phase: Phase) -> None:
    """Write the last phase, unless the leading one of several processes has: its numbers are the right ones."""
    if read_record(progress.path).get("phase") != phase:
        progress.tick(phase)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the work directory's lock; the kernel releases it when this process ends, however it ends.

    Raises:
        Fenced: another trainer holds it and goes on living.
    """
    with path.open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Fenced(f"{path} is held by another trainer that is still running") from None
                time.sleep(0.05)
        yield


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that wait for a store, and torch's own, must not keep the process from ending.
    os._exit(code)
