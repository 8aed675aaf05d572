"""Roster and journal: written when they must be, tried again with patience; and when time alone wakes a campaign."""

from __future__ import annotations

from anabasis.campaign import events as e
from anabasis.campaign import messages as m
from anabasis.campaign.incidents import FLUSH_AT
from anabasis.campaign.planner import RELEASE_SECONDS, wake_at
from anabasis.campaign.status import Phase
from tests.campaign.world import World, training


def _due_in(world: World) -> float | None:
    due = wake_at(world.state, now=world.now)
    return None if due is None else round(due - world.now, 3)


def test_changes_of_the_fleet_while_a_roster_is_written_make_one_more_roster() -> None:
    world = World.of()
    world.tick()
    for node in world.started:
        world.report(node, "ready")
    assert world.generations == [1]
    world.roster_written()
    assert world.generations == [1, 2]
    assert world.roster is not None
    assert [member.slot for member in world.roster.roster.members] == [0, 1, 2]
    world.roster_written()
    assert world.roster is None


def test_a_machine_that_was_only_asked_for_is_no_reason_to_write_the_roster() -> None:
    world = training()
    world.command(m.ScaleCommand(slots=4))
    world.roster_written()  # the slots
    written = len(world.generations)
    world.report(world.started[-1], "booting")
    assert len(world.generations) == written
    world.report(world.started[-1], "ready")
    assert len(world.generations) == written + 1


def test_a_roster_that_could_not_be_written_is_tried_again_later_and_later_with_a_new_generation() -> None:
    world = training()
    world.report(world.started[0], "failed", failure="Lost")
    waits: list[float | None] = []
    for _ in range(8):
        assert world.roster is not None
        generation = world.roster.roster.generation
        world.roster_written(ok=False)
        assert world.roster is None, "a store that refuses at once would be asked without a pause"
        waits.append(_due_in(world))
        world.wait()
        assert world.generations[-1] == generation + 1
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    world.roster_written()
    assert world.roster is None
    world.report(world.started[1], "failed", failure="Lost")
    world.roster_written(ok=False)
    assert _due_in(world) == 1.0


def test_a_store_that_takes_no_roster_does_not_hold_up_the_end_for_ever() -> None:
    world = training()
    world.job_fails(permanent=True, failure="StoreDenied")
    for node in list(world.machines.values()):
        world.report(node, "gone")
    for _ in range(20):
        world.job_fails()
        world.roster_written(ok=False)
        world.journal_written(ok=False)
        world.wait()
    assert world.state.phase is Phase.FAILED
    assert world.now < RELEASE_SECONDS
    assert len(world.generations) <= 6


def test_the_end_waits_for_the_roster_that_says_so() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    world.job_ends(rounds=0)
    for node in list(world.machines.values()):
        world.report(node, "gone")
    world.roster_written(ok=False)
    assert world.journal is None
    world.wait()
    assert world.roster is not None
    assert world.roster.roster.phase == "finished"
    world.roster_written()
    assert world.journal is not None


def test_a_journal_that_could_not_be_written_is_tried_again_later_and_later() -> None:
    world = training()
    world.report(world.started[0], "failed", failure="Lost")
    world.report(world.started[-1], "ready")
    world.job_ends()
    world.job_ends()
    assert world.journal is not None, "a checkpoint takes the journal along"
    assert len(world.journal.entries) == 1
    waits: list[float | None] = []
    for _ in range(4):
        world.journal_written(ok=False)
        assert world.journal is None
        waits.append(_due_in(world))
        world.wait()
        assert world.journal is not None
        assert world.journal.sequence == 0
    assert waits == [1.0, 2.0, 4.0, 8.0]
    world.journal_written()
    assert world.state.journaled_through == 1


def test_journal_failures_of_long_ago_do_not_cost_the_campaign_its_last_journal() -> None:
    world = training()
    world.report(world.started[0], "failed", failure="Lost")
    world.report(world.started[-1], "ready")
    world.job_ends()
    world.job_ends()
    for _ in range(5):
        world.journal_written(ok=False)
        world.tick(100.0)
    world.journal_written(ok=False)
    assert not world.state.final_journal_done
    world.feed(e.CancelRequested(at=world.now))
    for _ in range(3):
        world.roster_written()
    world.job_ends(rounds=0)
    for node in list(world.machines.values()):
        world.report(node, "gone")
    world.wait()
    assert world.journal is not None
    assert world.journal.final


def test_an_incident_of_a_slot_that_is_scaled_away_does_not_hold_up_the_journal() -> None:
    world = training()
    world.report(world.started[2], "failed", failure="Lost")
    world.command(m.ScaleCommand(slots=2))
    assert [one.mended_at for one in world.state.incidents] == [0.0]
    world.report(world.started[2], "gone")
    world.command(m.ScaleCommand(slots=3))
    world.report(world.started[-1], "ready")
    world.command(m.ScaleCommand(slots=2))
    world.report(world.started[-1], "failed", failure="TrainerCrashed")
    assert [one.mended_at for one in world.state.incidents] == [0.0, 0.0]
    for _ in range(FLUSH_AT):
        world.report(next(node for node in reversed(world.started) if node.slot == 0), "failed", failure="Preempted")
        world.wait()
    world.report(next(node for node in reversed(world.started) if node.slot == 0), "ready")
    assert world.journal is not None


def test_a_campaign_at_work_is_woken_by_nothing_but_events() -> None:
    assert _due_in(training()) is None


def test_a_campaign_that_comes_to_rest_is_not_woken_for_an_empty_slot() -> None:
    """It starts nothing until then: a timer for it would fill the history that is too long already."""
    world = training()
    world.report(world.started[0], "failed", failure="Lost")
    world.report(world.started[-1], "failed", failure="Lost")
    world.feed(e.ContinueRequested(at=world.now))
    world.tick(10.0)
    assert _due_in(world) is None


def test_a_closing_campaign_is_not_woken_again_and_again_when_its_last_job_takes_long() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    assert _due_in(world) == RELEASE_SECONDS
    world.tick(RELEASE_SECONDS + 1)
    assert world.job is not None
    assert _due_in(world) is None
