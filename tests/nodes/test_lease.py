"""The trainer belongs to the agent: what leases see of it, by real processes through a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import ActivityFailureError, WorkflowHandle

from activities.providers.node_folder import NodeFolder
from activities.providers.processes import ProcessMark
from tests.nodes.conftest import Machine, alive, behave, identity, process_at, progress_of, until_training
from tests.nodes.drive_node import DriveNode, Outcome
from tests.support.wait import wait_until

Handle = WorkflowHandle[DriveNode, Outcome]


async def outcome_of(handle: Handle) -> Outcome:
    return await asyncio.wait_for(handle.result(), 60)


async def test_a_lease_reports_the_machine_and_ends_when_it_is_over_while_training_goes_on(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    outcome = await outcome_of(await machine.lease(node, lease_seconds=1.5))
    assert outcome.report is not None
    assert outcome.report.agent_pid == process_at(folder.agent_pid).pid
    assert outcome.report.memory_bytes > 0
    result = outcome.result
    assert result is not None
    assert (result.reason, result.trainer_starts) == ("lease_over", 1)
    assert result.steps > 0
    assert result.trainer_pid == process_at(folder.trainer_pid).pid
    before = progress_of(folder)["steps"]
    await wait_until(lambda: progress_of(folder)["steps"] > before, seconds=10)


async def test_the_next_lease_adopts_the_running_trainer(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    first = (await outcome_of(await machine.lease(node, lease_seconds=1.0))).result
    second = (await outcome_of(await machine.lease(node, lease_seconds=1.0))).result
    assert first is not None
    assert second is not None
    assert second.trainer_pid == first.trainer_pid
    assert second.trainer_starts == 1
    assert second.steps > first.steps
    assert len(alive(folder)) == 2  # the agent and one trainer


async def test_a_newer_attempt_takes_the_lease_over_without_a_restart(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    old = await machine.lease(node)
    await until_training(folder)
    pid = process_at(folder.trainer_pid).pid
    new = await machine.lease(node, lease_seconds=1.0)
    assert (await outcome_of(old)).failure == "Superseded"
    result = (await outcome_of(new)).result
    assert result is not None
    assert (result.trainer_pid, result.trainer_starts) == (pid, 1)


async def test_a_finished_campaign_ends_the_lease(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node)
    await until_training(folder)
    behave(folder, "finish")
    result = (await outcome_of(handle)).result
    assert result is not None
    assert result.reason == "finished"
    again = (await outcome_of(await machine.lease(node))).result
    assert again is not None
    assert (again.reason, again.trainer_starts) == ("finished", 1)


async def test_a_recipe_error_arrives_with_its_traceback(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    behave(folder, "fail")
    outcome = await outcome_of(await machine.lease(node, attempts=3))
    assert outcome.failure == "UserCodeError"
    assert "no\nTraceback" in outcome.text
    assert outcome.details["trainer_starts"] == 1


async def test_a_fenced_trainer_says_so(machine: Machine) -> None:
    node = identity()
    behave(await machine.start(node), "fence")
    assert (await outcome_of(await machine.lease(node))).failure == "Fenced"


async def test_a_lease_meant_for_another_node_is_refused(machine: Machine) -> None:
    node = identity()
    await machine.start(node)
    other = node.model_copy(update={"attempt": 2})
    handle = await machine.client.start_activity(
        "verify_node", other, id=f"verify-{other.nonce}", task_queue=node.task_queue,
        start_to_close_timeout=timedelta(seconds=20),
    )  # fmt: skip
    with pytest.raises(ActivityFailureError) as raised:
        await asyncio.wait_for(handle.result(), 30)
    assert "not 0-2" in str(raised.value.__cause__)


# --- faults -----------------------------------------------------------------------------------------------


async def test_a_killed_trainer_is_started_again_in_place(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node, lease_seconds=4.0)
    await until_training(folder)
    first = process_at(folder.trainer_pid)
    first.kill()
    await wait_until(lambda: _pid_in(folder.trainer_pid) not in (0, first.pid), seconds=10)
    result = (await outcome_of(handle)).result
    assert result is not None
    assert (result.reason, result.trainer_starts) == ("lease_over", 2)
    assert result.trainer_pid != first.pid


async def test_a_trainer_that_keeps_dying_is_given_up_with_its_last_words(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    behave(folder, "crash")
    outcome = await outcome_of(await machine.lease(node, attempts=3))
    assert outcome.failure == "TrainerCrashed"
    assert outcome.details["trainer_starts"] == 4  # once, and three times again
    assert "code 17" in outcome.text
    assert "last words" in outcome.text


async def test_a_frozen_trainer_is_noticed_within_twice_the_stall_time_and_never_goes_on(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node, stall_seconds=1.0)
    await until_training(folder)
    trainer = process_at(folder.trainer_pid)
    trainer.send_signal(signal.SIGSTOP)
    outcome = await outcome_of(handle)
    assert outcome.failure == "TrainerFrozen"
    assert "stopped" in outcome.text
    silent = float(outcome.text.split("for ")[1].split(" s")[0])
    assert 1.0 <= silent < 2.0
    assert outcome.details["last_progress_at"] > 0
    await wait_until(lambda: trainer.pid not in alive(folder), seconds=10)
    assert len(alive(folder)) == 1  # the agent


async def test_a_trainer_that_lives_without_progress_is_frozen_too(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node, stall_seconds=1.0)
    await until_training(folder)
    behave(folder, "freeze")
    assert (await outcome_of(handle)).failure == "TrainerFrozen"


async def test_a_slow_start_is_no_freeze(machine: Machine) -> None:
    node = identity()
    behave(await machine.start(node), "late")
    result = (await outcome_of(await machine.lease(node, stall_seconds=0.5, lease_seconds=3.0))).result
    assert result is not None
    assert result.reason == "lease_over"
    assert result.steps > 0


async def test_a_killed_agent_takes_its_trainer_along_and_times_out(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node, heartbeat_seconds=2.0)
    await until_training(folder, steps=30)
    process_at(folder.agent_pid).kill()
    outcome = await outcome_of(handle)
    assert outcome.failure == "timeout HEARTBEAT"
    assert outcome.details["s"] > 0
    assert outcome.details["at"] > 0
    assert alive(folder) == []
    assert (await machine.provider.describe(node)).state == "absent"


async def test_sigterm_hands_the_lease_back_and_the_agent_leaves(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node)
    await until_training(folder)
    process_at(folder.agent_pid).terminate()
    outcome = await outcome_of(handle)
    assert outcome.failure == "NodeDrained"
    await wait_until(lambda: alive(folder) == [], seconds=20)
    assert progress_of(folder)["phase"] == "stopped"
    assert "worker_stuck" not in folder.agent_log.read_text()


async def test_a_deaf_trainer_is_ended_when_its_grace_is_over(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node, shutdown_grace_seconds=0.5)
    behave(folder, "deaf")
    handle = await machine.lease(node, heartbeat_seconds=2.0)
    await until_training(folder)
    process_at(folder.agent_pid).terminate()
    assert (await outcome_of(handle)).failure == "NodeDrained"
    await wait_until(lambda: alive(folder) == [], seconds=20)


async def test_cancelling_the_lease_stops_the_trainer_politely(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node)
    await until_training(folder)
    await handle.signal(DriveNode.leave)
    result = (await outcome_of(handle)).result
    assert result is not None
    assert result.reason == "drained"
    assert progress_of(folder)["phase"] == "stopped"
    assert len(alive(folder)) == 1  # the agent waits for what comes
    again = (await outcome_of(await machine.lease(node, lease_seconds=1.0))).result
    assert again is not None
    assert (again.reason, again.trainer_starts) == ("lease_over", 2)


async def test_an_agent_that_nobody_leases_ends_itself(machine: Machine) -> None:
    node = identity()
    machine.options = machine.options.model_copy(update={"orphan_seconds": 3.0})
    folder = await machine.start(node)
    result = (await outcome_of(await machine.lease(node, lease_seconds=1.0))).result
    assert result is not None
    assert result.reason == "lease_over"
    await wait_until(lambda: alive(folder) == [], seconds=30)
    assert "orphaned" in folder.agent_log.read_text()


async def test_a_frozen_and_thawed_agent_finds_its_trainer_sound(machine: Machine) -> None:
    node = identity()
    folder = await machine.start(node)
    handle = await machine.lease(node, heartbeat_seconds=1.0, stall_seconds=1.0, attempts=5, lease_seconds=8.0)
    await until_training(folder)
    agent = process_at(folder.agent_pid)
    agent.suspend()
    try:
        await wait_until(lambda: _attempts(machine, handle), seconds=20, every=0.2)
    finally:
        agent.resume()
    result = (await outcome_of(handle)).result
    assert result is not None
    assert (result.reason, result.trainer_starts) == ("lease_over", 1)


async def _attempts(machine: Machine, handle: Handle) -> bool:
    description = await machine.client.get_workflow_handle(handle.id).describe()
    return any(pending.attempt > 1 for pending in description.raw_description.pending_activities)


def _pid_in(path: Path) -> int:
    mark = ProcessMark.read(path)
    return mark.pid if mark else 0


def test_the_agent_imports_no_torch() -> None:
    code = "import sys, workers.agent; assert not {'torch', 'boto3', 'numpy'} & set(sys.modules), 'too heavy'"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": "."}, timeout=60)


def test_folders_name_their_node(tmp_path: Path) -> None:
    node = identity()
    assert NodeFolder(tmp_path, node).marker == f"{node.campaign}/{node.slot}-{node.attempt}-{node.nonce}"
