"""The node agent: `python -m workers.agent --config FILE`. One per node; it runs the trainer, and imports no torch.

It serves the node's own queue, so that it needs nothing but outgoing connections. It lives as long as it has leases:
when nobody has leased it for long (its campaign is over, or has given it up) it ends by itself. SIGTERM makes it hand
its lease back and leave.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import structlog
from pydantic import ValidationError
from structlog.contextvars import bind_contextvars
from temporalio.worker import Worker

from activities.agent_config import AgentConfig
from activities.lease import NodeActivities
from activities.providers.node_folder import NodeFolder, try_lock
from activities.providers.processes import NODE_VARIABLE, ProcessMark
from activities.trainer_keeper import TrainerKeeper
from anabasis import logs
from workers.connect import connect, exit_cleanly
from workers.log_files import rotate_if_large
from workers.process import exit_on_fatal_error, run_worker
from workers.tether import tethered

LOCK_SECONDS = 1.0
"""Someone who only asks whether this node lives holds its lock for an instant: keep trying for so long."""

BEATS_PER_TIMEOUT = 5
"""Heartbeats that reach the server within one heartbeat timeout: a loss is noticed after 80 to 100 % of it, and four
in a row may get lost."""

WORKER_STOP_SECONDS = 5.0
"""For results that are on their way to reach the server, after the trainer has ended."""

HOUSEKEEPING_SECONDS = 5.0

MAX_LOG_BYTES = 5_000_000
"""Of each log file of a node: there are many nodes. One older part of the same size is kept."""

MAX_CONCURRENT_ACTIVITIES = 4
"""A lease, the attempt that it replaces, a verification, and one to spare."""

_log = structlog.get_logger(__name__)


class NodeProcess:
    """The agent of one node, as long as this process lives."""

    def __init__(self, config: AgentConfig, folder: NodeFolder) -> None:
        self.config = config
        self.folder = folder
        self.keeper = TrainerKeeper(config, command=tethered(config.trainer_command), marker=folder.marker)
        self.activities = NodeActivities(config, self.keeper)

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve the node's queue until told to stop. Raises what a defect raises: then the agent must not go on."""
        client = await connect(identity=f"node {self.folder.marker}", patience_seconds=self.config.orphan_seconds)
        worker = Worker(
            client,
            task_queue=self.config.node.task_queue,
            activities=[self.activities.verify_node, self.activities.train_lease],
            max_concurrent_activities=MAX_CONCURRENT_ACTIVITIES,
            max_concurrent_activity_task_polls=1,
            max_heartbeat_throttle_interval=timedelta(seconds=self.config.heartbeat_seconds / BEATS_PER_TIMEOUT),
            default_heartbeat_throttle_interval=timedelta(seconds=self.config.heartbeat_seconds / BEATS_PER_TIMEOUT),
            graceful_shutdown_timeout=timedelta(seconds=WORKER_STOP_SECONDS),
            on_fatal_error=exit_on_fatal_error,
        )
        async with worker:
            _log.info("serving", queue=self.config.node.task_queue)
            await self._until_stopped(stop)
            await self.keeper.drain()  # leases see that and hand themselves back

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        tasks = [
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self.keeper.watch()),
            asyncio.create_task(self._keep_house()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Exception:
            os.kill(os.getpid(), signal.SIGTERM)  # arms the watchdog: the way out may hang
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(min(HOUSEKEEPING_SECONDS, self.config.orphan_seconds / 5))
            for log in (self.folder.agent_log, self.folder.trainer_log):
                with suppress(OSError):  # a full disk shows itself elsewhere
                    await asyncio.to_thread(rotate_if_large, log, max_bytes=MAX_LOG_BYTES)
            idle = time.monotonic() - self.activities.idle_since
            if self.activities.leases == 0 and idle > self.config.orphan_seconds:
                _log.warning("orphaned", idle_seconds=round(idle), limit_seconds=self.config.orphan_seconds)
                os.kill(os.getpid(), signal.SIGTERM)  # the same way out, with its watchdog


def main(arguments: list[str]) -> None:
    """Run the agent that the config file describes. Never returns."""
    logs.configure(json=True)
    parser = argparse.ArgumentParser(prog="python -m workers.agent", description="Agent of one node of Anabasis.")
    parser.add_argument("--config", type=Path, required=True, help="AgentConfig as JSON")
    path: Path = parser.parse_args(arguments).config
    try:
        config = AgentConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        _log.error("config_unusable", path=str(path), reason=str(error).splitlines()[0])
        exit_cleanly(2)
    folder = NodeFolder(config.folder.parents[2], config.node)
    bind_contextvars(campaign=config.node.campaign, node=config.node.node_id)
    # Its children inherit the marker; and the connection's TLS and keys stay what environment or profile say.
    os.environ[NODE_VARIABLE] = folder.marker
    os.environ["TEMPORAL_ADDRESS"] = config.temporal_target
    os.environ["TEMPORAL_NAMESPACE"] = config.temporal_namespace
    with _only_agent(folder):
        node = NodeProcess(config, folder)
        stop_seconds = 2 * config.shutdown_grace_seconds + 2 * WORKER_STOP_SECONDS
        run_worker(node.serve, stop_seconds=stop_seconds, json_logs=True)


@contextmanager
def _only_agent(folder: NodeFolder) -> Iterator[None]:
    """Hold the node's lock, or leave at once: another agent lives here, or the node was released."""
    with folder.lock.open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(file):
            if time.monotonic() > deadline:
                _log.info("another_agent_lives_here")
                exit_cleanly(0)
            time.sleep(0.02)
        if folder.tombstone.exists():
            _log.info("released_before_started")
            exit_cleanly(0)
        if folder.agent_pid.exists():
            _log.info("had_its_life")  # a machine that has come and gone does not come back under its old name
            exit_cleanly(0)
        mark = ProcessMark.of(os.getpid())
        if mark is not None:
            mark.write(folder.agent_pid)
        yield


if __name__ == "__main__":
    main(sys.argv[1:])
