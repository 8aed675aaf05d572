"""What operators' commands do to a campaign, and which are refused."""

from __future__ import annotations

import pytest

from anabasis.campaign import events as e
from anabasis.campaign import messages as m
from anabasis.campaign.status import NodeState, Phase
from tests.campaign.world import World, run_well, training


def _stops(decisions: list[e.Decision]) -> list[tuple[int, int, bool]]:
    return [(d.node.slot, d.node.attempt, d.polite) for d in decisions if isinstance(d, e.StopNode)]


def _send(world: World, command: m.Message) -> list[e.Decision]:
    assert world.command(command) is None
    return world.last


def test_the_first_step_asks_for_every_slot_and_publishes_an_empty_roster() -> None:
    world = World.of()
    world.tick()
    assert [(node.slot, node.attempt) for node in world.started] == [(0, 1), (1, 1), (2, 1)]
    assert world.roster is not None
    assert world.roster.roster.members == []
    assert world.job is None
    assert world.state.phase is Phase.PROVISIONING


def test_training_starts_with_the_quorum_not_with_the_whole_fleet() -> None:
    world = World.of(rounds={"quorum": 0.6}, fleet={"slots": 4})
    world.tick()
    for node in world.started[:2]:
        world.report(node, "ready")
    assert world.job is None
    world.report(world.started[2], "ready")
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("leg", 10)
    assert world.state.phase is Phase.TRAINING


def test_a_deterministic_campaign_waits_for_every_slot() -> None:
    world = World.of(training={"deterministic": True}, rounds={"quorum": 0.1})
    world.tick()
    for node in world.started[:2]:
        world.report(node, "ready")
    assert world.job is None
    world.report(world.started[2], "ready")
    assert world.job is not None


def test_starts_keep_to_the_rate() -> None:
    world = World.of(fleet={"slots": 8, "start_rate_per_second": 2.0})
    world.tick()
    assert len(world.started) == 2
    world.tick(0.4)
    assert len(world.started) == 2
    world.tick(0.7)
    assert len(world.started) == 4
    world.tick(60.0)
    assert len(world.started) == 6, "an idle minute is not saved up for a burst"


def test_pause_keeps_the_machines_and_takes_a_checkpoint_of_what_is_done() -> None:
    world = training()
    decisions = _send(world, m.PauseCommand(reason="maintenance"))
    assert [type(d) for d in decisions if not isinstance(d, e.WriteRoster)] == [e.InterruptJob]
    world.job_ends(rounds=2)
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("checkpoint", 2)
    assert world.state.phase is Phase.CHECKPOINTING
    world.job_ends()
    assert world.job is None
    assert world.state.phase is Phase.PAUSED
    assert world.state.ready_nodes == 3
    assert world.told == set()
    assert world.state.roster is not None
    assert world.command(m.PauseCommand()) == "the campaign is paused already; use resume"


def test_a_paused_roster_is_published_and_resume_goes_on_where_it_was() -> None:
    world = training()
    _send(world, m.PauseCommand())
    world.roster_written()
    assert world.roster is None
    assert world.state.roster is not None
    assert world.state.roster.phase == "paused"
    world.job_ends(rounds=2)
    world.job_ends()
    _send(world, m.ResumeCommand())
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("leg", 12)
    assert world.roster is not None
    assert world.roster.roster.phase == "training"
    assert world.command(m.ResumeCommand()) == "the campaign is not paused"


def test_pause_with_release_sends_machines_home_and_resume_asks_for_new_ones() -> None:
    world = training()
    decisions = _send(world, m.PauseCommand(release_nodes=True))
    assert _stops(decisions) == [(0, 1, False), (1, 1, False), (2, 1, False)]
    world.job_ends(rounds=1)
    world.job_ends()
    for node in list(world.machines.values()):
        world.report(node, "gone")
    world.tick(1_000.0)
    assert world.state.nodes == {}
    assert len(world.started) == 3
    _send(world, m.ResumeCommand())
    assert [(node.slot, node.attempt) for node in world.started[3:]] == [(0, 2), (1, 2), (2, 2)]
    run_well(world)
    assert world.state.phase is Phase.COMPLETED


def test_scaling_down_drains_the_highest_slots_politely() -> None:
    world = training()
    assert _stops(_send(world, m.ScaleCommand(slots=1))) == [(1, 1, True), (2, 1, True)]
    leaving = [life.key for life in world.state.nodes.values() if life.state is NodeState.DRAINING]
    assert leaving == ["1-1", "2-1"]
    for node in world.started[1:]:
        world.report(node, "gone")
    world.tick(100.0)
    assert [life.key for life in world.state.nodes.values()] == ["0-1"]
    assert len(world.started) == 3


def test_scaling_up_fills_only_the_new_slots() -> None:
    world = training()
    _send(world, m.ScaleCommand(slots=5))
    assert [(node.slot, node.attempt) for node in world.started[3:]] == [(3, 1), (4, 1)]


def test_scaling_down_and_up_again_waits_for_the_draining_machine_to_leave_its_slot() -> None:
    world = training()
    _send(world, m.ScaleCommand(slots=2))
    _send(world, m.ScaleCommand(slots=3))
    world.tick(10.0)
    assert len(world.started) == 3
    world.report(world.started[2], "gone")
    assert [(node.slot, node.attempt) for node in world.started[3:]] == [(2, 2)]


def test_a_machine_that_still_boots_is_not_asked_politely_when_scaled_away() -> None:
    world = World.of()
    world.tick()
    assert _stops(_send(world, m.ScaleCommand(slots=2))) == [(2, 1, False)]


def test_scale_is_refused_beyond_the_partitions_and_below_the_contributors() -> None:
    world = training(rounds={"min_contributors": 2})
    assert "exceeds data.partitions = 8" in (world.command(m.ScaleCommand(slots=9)) or "")
    assert "below rounds.min_contributors = 2" in (world.command(m.ScaleCommand(slots=1)) or "")
    assert world.state.desired_slots == 3


def test_drain_lets_one_machine_leave_and_fills_its_slot_again() -> None:
    world = training()
    decisions = _send(world, m.DrainCommand(slot=1, reason="disk is noisy"))
    assert _stops(decisions) == [(1, 1, True)]
    assert len(world.started) == 3, "its seat is taken until it has left"
    world.report(world.started[1], "failed", failure="NodeDrained")
    assert (world.started[-1].slot, world.started[-1].attempt) == (1, 2)
    assert world.state.incidents == [], "what an operator wants is no incident"


def test_drain_of_an_empty_slot_is_refused_with_the_slots_that_have_nodes() -> None:
    assert training().command(m.DrainCommand(slot=7)) == "slot: 7 has no node now; slots with nodes: [0, 1, 2]"


def test_a_checkpoint_on_demand_interrupts_the_leg_and_then_training_goes_on() -> None:
    world = training()
    assert any(isinstance(d, e.InterruptJob) for d in _send(world, m.CheckpointCommand()))
    world.job_ends(rounds=3)
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("checkpoint", 3)
    world.job_ends()
    assert (world.job.kind, world.job.version) == ("leg", 13)
    assert world.state.checkpoint_version == 3


def test_a_checkpoint_on_demand_of_what_is_kept_already_writes_nothing() -> None:
    world = training()
    _send(world, m.CheckpointCommand())
    world.job_ends(rounds=0)
    assert world.job is not None
    assert world.job.kind == "leg"
    assert not world.state.checkpoint_requested


def test_extend_is_refused_when_it_changes_nothing() -> None:
    world = training(target={"rounds": 5})
    world.progress(rounds=4)
    assert "say at least one" in (world.command(m.ExtendCommand()) or "")
    assert "not beyond the 4 that are done" in (world.command(m.ExtendCommand(rounds=4)) or "")
    assert "not beyond the 40 that are done" in (world.command(m.ExtendCommand(tokens=40)) or "")
    assert world.command(m.ExtendCommand(rounds=6)) is None


def test_extend_of_a_campaign_that_awaits_approval_trains_on_with_new_machines() -> None:
    world = training(target={"rounds": 3}, control={"approve_publish": True})
    for _ in range(2):  # the leg, then the checkpoint
        world.job_ends()
    assert world.job is None
    assert world.state.phase is Phase.PUBLISHING
    for node in list(world.machines.values()):
        world.report(node, "gone")
    _send(world, m.ExtendCommand(rounds=6))
    assert len(world.started) == 6
    assert world.state.outcome is None
    for _ in range(30):
        world.behave()
    assert world.state.merged_rounds == 6
    assert world.ends == [], "the longer training is approved anew"
    _send(world, m.ApproveCommand())
    run_well(world)
    assert world.state.published_version == 6


def test_extend_while_publishing_goes_on_to_the_new_target() -> None:
    world = training(target={"rounds": 3})
    for _ in range(2):
        world.job_ends()
    assert world.job is not None
    assert world.job.kind == "publish"
    _send(world, m.ExtendCommand(rounds=5))
    world.job_ends()
    assert world.state.outcome is None
    run_well(world)
    assert (world.state.merged_rounds, world.state.published_version) == (5, 5)


def test_approval_is_refused_where_none_is_asked_for_and_publishes_where_it_is() -> None:
    assert "approve_publish is off" in (training().command(m.ApproveCommand()) or "")
    world = training(target={"rounds": 1}, control={"approve_publish": True})
    world.job_ends()
    world.job_ends()
    assert world.job is None
    _send(world, m.ApproveCommand())
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("publish", 1)


@pytest.mark.parametrize(
    "command",
    [
        m.PauseCommand(),
        m.ResumeCommand(),
        m.ScaleCommand(slots=1),
        m.DrainCommand(slot=0),
        m.ExtendCommand(rounds=99),
        m.SetBudgetCommand(),
        m.CheckpointCommand(),
        m.ApproveCommand(),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_ending_campaign_takes_no_commands(command: m.Message) -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    assert world.command(command) == "the campaign is releasing and takes no more commands"


def test_old_news_of_progress_and_of_jobs_that_are_over_changes_nothing() -> None:
    world = training()
    world.progress(rounds=5)
    world.progress(rounds=-2)
    assert (world.state.version, world.state.merged_rounds) == (5, 5)
    old = m.CheckpointResult(version=99, key="k", bytes_written=1, seconds=1.0)
    world.feed(e.CheckpointWritten(at=world.now, job=world.state.job_number - 1, result=old))
    assert world.state.job is not None
    assert world.state.checkpoint_version == 0
