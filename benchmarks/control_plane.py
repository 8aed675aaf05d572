"""What it costs to steer hundreds of nodes, and how fast a lost one is noticed and replaced.

    python -m benchmarks.control_plane                       # 500 nodes, 50 rounds
    python -m benchmarks.control_plane --nodes 50 --rounds 10

One campaign with simulated nodes on an embedded stack of its own (a real Temporal dev server, a real control worker, a
real aggregator, the real mailbox; only the machines are simulated, in one process). Some of them vanish without a
word. It reports, per node-round (one contribution of one node that was merged):

* history events, of the campaign's workflow and of all workflows together,
* CPU seconds of the server, the control worker and the aggregator, over the whole campaign and between the rounds
  in which the fleet is complete,

and from the moment at which a machine vanished (by the simulated cloud's own log) to the request for its replacement:
the median and the 95th percentile, split into detection (until the campaign knew) and decision (until the provider was
asked). Detection is bounded by the heartbeat timeout; so it is given in multiples of it, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from activities.providers import local, simulated
from activities.providers.cloud_table import CloudTable
from activities.providers.processes import ProcessMark
from activities.providers.simulated import simulation_dir
from anabasis.campaign.records import keys
from anabasis.campaign.status import CampaignStatus, Incident
from anabasis.client import Anabasis, CampaignHandle
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import newest_version, read_version
from workers.connect import exit_cleanly
from workers.detached import start_detached
from workers.embedded import StackOptions
from workers.state_dir import StackRecord, StateDir
from workers.teardown import down

RESULTS = Path(__file__).with_name("results")
NAME = "control-plane"
LOOK_SECONDS = 0.5


@dataclass
class Meter:
    """CPU seconds of the stack's processes, by name."""

    record: StackRecord
    folder: Path
    _seen: dict[str, psutil.Process] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        found = {child.name: child.find() for child in self.record.children}
        mark = ProcessMark.read(self.folder / "simulator.pid")
        found["simulator"] = mark.find() if mark is not None else None
        self._seen |= {name: process for name, process in found.items() if process is not None}
        return {name: _cpu_seconds(process) for name, process in self._seen.items()}

    def memory_bytes(self) -> dict[str, int]:
        return {name: process.memory_info().rss for name, process in self._seen.items() if process.is_running()}


@dataclass(frozen=True)
class Span:
    """A stretch of the campaign."""

    seconds: float
    node_rounds: int
    cpu_seconds: dict[str, float]

    def per_node_round(self) -> dict[str, float]:
        """CPU milliseconds."""
        return {name: round(1e3 * used / max(1, self.node_rounds), 3) for name, used in self.cpu_seconds.items()}


@dataclass(frozen=True)
class Loss:
    """Seconds from a machine's end."""

    detection: float
    decision: float

    @property
    def total(self) -> float:
        return self.detection + self.decision


async def measure(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Run the campaign on a stack of its own below `home`."""
    os.environ["ANABASIS_HOME"] = str(home)
    state = StateDir()
    record = await asyncio.to_thread(start_detached, StackOptions(port=0, detached=True), state)
    os.environ["TEMPORAL_ADDRESS"] = record.address
    try:
        client = await Anabasis.connect(address=record.address)
        return await _campaign(arguments, client, record=record, home=home)
    finally:
        await asyncio.to_thread(down, state)
        await asyncio.to_thread(simulated.stop_all, home)
        await asyncio.to_thread(local.stop_all, home)


async def _campaign(
    arguments: argparse.Namespace, client: Anabasis, *, record: StackRecord, home: Path
) -> dict[str, Any]:
    store = open_store(record.store_url).child(keys.campaign_root(NAME))
    meter = Meter(record, simulation_dir(home, NAME))
    began, cpu = time.monotonic(), meter.read()
    handle = await client.start(_spec(arguments))
    complete = await _until(lambda s: s.ready_nodes >= arguments.nodes or s.phase.terminal, handle, arguments)
    events_before = await _history_events(client)
    steady_from, steady_at, steady_cpu = complete.version + 1, time.monotonic(), meter.read()
    print(f"fleet complete after {steady_at - began:.1f} s, in round {complete.version + 1}", flush=True)
    await _until(lambda s: (s.merged_rounds or 0) >= arguments.rounds or s.phase.terminal, handle, arguments)
    ended_at, ended_cpu = time.monotonic(), meter.read()
    memory = meter.memory_bytes()
    events_after = await _history_events(client)
    status = await handle.status()
    await handle.result(timeout_seconds=arguments.deadline_seconds)
    final = await handle.status()
    total = Span(time.monotonic() - began, _node_rounds(store, after=0), _used(cpu, meter.read()))
    steady = Span(ended_at - steady_at, _node_rounds(store, after=steady_from), _used(steady_cpu, ended_cpu))
    events = await _history_events(client)
    events |= {f"{name}_steady": events_after[name] - events_before[name] for name in ("campaign", "all")}
    losses = _losses(CloudTable(simulation_dir(home, NAME)), [*status.incidents, *final.incidents])
    return _report(arguments, total=total, steady=steady, events=events, losses=losses, status=final, memory=memory)


def _spec(arguments: argparse.Namespace) -> dict[str, Any]:
    steps = 20
    return {
        "name": NAME,
        "recipe": "tiny",
        "target": {"rounds": arguments.rounds},
        "data": {
            "tokenizer": "bytes",
            "sequence_length": 32,
            "max_bytes": 4_000_000,
            "partitions": max(32, arguments.nodes),
        },
        "fleet": {
            "slots": arguments.nodes,
            "provider": "simulated",
            "provider_options": {
                "steps_per_second": steps / arguments.round_seconds,
                "spread": 0.1,
                "boot_seconds": 2.0,
                "mean_seconds_to_failure": arguments.mean_seconds_to_failure,
            },
        },
        "training": {"inner_steps": steps, "batch_size": 1, "dense_warmup_rounds": 0},
        "rounds": {"quorum": 0.8, "poll_seconds": 0.5, "grace_factor": 1.2},
        "checkpoint": {"every_rounds": 10, "evaluate_every_rounds": 0},
        "health": {"heartbeat_seconds": arguments.heartbeat_seconds},
    }


async def _until(
    reached: Callable[[CampaignStatus], bool], handle: CampaignHandle, arguments: argparse.Namespace
) -> CampaignStatus:
    deadline = time.monotonic() + arguments.deadline_seconds
    while True:
        status = await handle.status()
        if reached(status):
            return status
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {arguments.deadline_seconds:g} s: {status.phase}, version {status.version}")
        await asyncio.sleep(LOOK_SECONDS)


def _node_rounds(store: ObjectStore, *, after: int) -> int:
    newest = newest_version(store) or 0
    return sum(len(read_version(store, version).contributions) for version in range(after + 1, newest + 1))


async def _history_events(client: Anabasis) -> dict[str, int]:
    """Events of the campaign's own runs, and of those and its nodes' together."""
    own = total = workflows = 0
    async for execution in client.client.list_workflows(f"WorkflowId STARTS_WITH 'campaign/{NAME}'"):
        description = await client.client.get_workflow_handle(execution.id, run_id=execution.run_id).describe()
        workflows += 1
        total += description.history_length
        own += description.history_length if execution.id == f"campaign/{NAME}" else 0
    return {"campaign": own, "all": total, "workflows": workflows}


def _losses(table: CloudTable, incidents: list[Incident]) -> list[Loss]:
    """Machines that vanished, were noticed as lost, and were replaced."""
    noticed = {(i.slot, i.attempt): i.noticed_at for i in incidents if i.kind == "lost"}
    asked: dict[tuple[int, int], float] = {}
    for key, at in table.requested_at().items():
        slot, attempt, _ = key.split("-")
        asked[int(slot), int(attempt)] = at
    found: list[Loss] = []
    for move in table.log():
        slot, attempt = (int(part) for part in move.key.split("-")[:2])
        known, replaced = noticed.get((slot, attempt)), asked.get((slot, attempt + 1))
        if move.detail == "lost" and known is not None and replaced is not None:
            found.append(Loss(detection=known - move.at, decision=replaced - known))
    return found


def _report(
    arguments: argparse.Namespace,
    *,
    total: Span,
    steady: Span,
    events: dict[str, int],
    losses: list[Loss],
    status: CampaignStatus,
    memory: dict[str, int],
) -> dict[str, Any]:
    heartbeat = arguments.heartbeat_seconds
    seconds = {
        name: {"p50": _quantile(values, 0.5), "p95": _quantile(values, 0.95)}
        for name, values in (
            ("lost_to_requested", [loss.total for loss in losses]),
            ("detection", [loss.detection for loss in losses]),
            ("decision", [loss.decision for loss in losses]),
        )
    }
    return {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "nodes": arguments.nodes,
        "rounds": status.merged_rounds,
        "phase": status.phase.value,
        "incidents": status.incidents_total,
        "seconds": round(total.seconds, 1),
        "steady_seconds": round(steady.seconds, 1),
        "node_rounds": total.node_rounds,
        "history_events": events,
        "events_per_node_round": {
            "campaign": round(events["campaign"] / max(1, total.node_rounds), 4),
            "all": round(events["all"] / max(1, total.node_rounds), 4),
            "campaign_steady": round(events["campaign_steady"] / max(1, steady.node_rounds), 4),
            "all_steady": round(events["all_steady"] / max(1, steady.node_rounds), 4),
        },
        "cpu_ms_per_node_round": {"whole": total.per_node_round(), "steady": steady.per_node_round()},
        "steady_cpu_share": {name: round(used / steady.seconds, 3) for name, used in steady.cpu_seconds.items()},
        "memory_mb": {name: round(size / 1e6) for name, size in memory.items()},
        "heartbeat_seconds": heartbeat,
        "losses": len(losses),
        "loss_seconds": seconds,
        "detection_p95_in_heartbeats": round(seconds["detection"]["p95"] / heartbeat, 3) if losses else None,
        "options": {key: value for key, value in vars(arguments).items() if key != "output"},
        "spans": {"whole": asdict(total), "steady": asdict(steady)},
    }


def _markdown(result: dict[str, Any]) -> str:
    loss, cpu = result["loss_seconds"], result["cpu_ms_per_node_round"]
    rows = [
        ("history events per node-round, campaign workflow", result["events_per_node_round"]["campaign"]),
        ("history events per node-round, all workflows", result["events_per_node_round"]["all"]),
        (
            "history events per node-round, campaign workflow, fleet complete",
            result["events_per_node_round"]["campaign_steady"],
        ),
        ("history events per node-round, all workflows, fleet complete", result["events_per_node_round"]["all_steady"]),
        *((f"CPU ms per node-round, {name}, whole campaign", value) for name, value in cpu["whole"].items()),
        *((f"CPU ms per node-round, {name}, fleet complete", value) for name, value in cpu["steady"].items()),
        ("nodes lost and replaced", result["losses"]),
        *((f"lost → replacement requested, {q}, s", loss["lost_to_requested"][q]) for q in ("p50", "p95")),
        *((f"of which detection, {q}, s", loss["detection"][q]) for q in ("p50", "p95")),
        *((f"of which decision, {q}, s", loss["decision"][q]) for q in ("p50", "p95")),
        ("detection p95, in heartbeat timeouts", result["detection_p95_in_heartbeats"]),
    ]
    head = (
        f"# Control plane: {result['nodes']} simulated nodes, {result['rounds']} rounds\n\n"
        f"{result['machine']}; {result['seconds']} s, {result['node_rounds']} node-rounds, heartbeat timeout "
        f"{result['heartbeat_seconds']:g} s. Made by `python -m benchmarks.control_plane`.\n\n| | |\n|---|---|\n"
    )
    return head + "".join(f"| {name} | {value} |\n" for name, value in rows)


def _used(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: round(value - before.get(name, 0.0), 3) for name, value in after.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def _quantile(values: list[float], share: float) -> float:
    if not values:
        return math.nan
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--round-seconds", type=float, default=8.0, help="time in which the median node does its steps")
    parser.add_argument("--heartbeat-seconds", type=float, default=30.0)
    parser.add_argument("--mean-seconds-to-failure", type=float, default=3_600.0, help="of one node")
    parser.add_argument("--deadline-seconds", type=float, default=3_600.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "control_plane")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabasis-control-plane-", ignore_cleanup_errors=True) as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    text = _markdown(result)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    arguments.output.with_suffix(".md").write_text(text)
    print(text)
    sys.stdout.flush()
    exit_cleanly(0 if result["phase"] == "completed" else 1)


if __name__ == "__main__":
    main()
