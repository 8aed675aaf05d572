"""What each class of failure does: of nodes, of the aggregator's jobs, of the training itself."""

from __future__ import annotations

import pytest

from anabasis.campaign import messages as m
from anabasis.campaign.incidents import FLUSH_AT, KEPT
from anabasis.campaign.planner import wake_at
from anabasis.campaign.reducer import MAX_JOB_FAILURES
from anabasis.campaign.state import CampaignState
from anabasis.campaign.status import Incident, Phase
from tests.campaign.world import World, run_well, training

FREE = ["Lost", "TrainerFrozen", "Preempted", "NodeDrained", "Fenced"]
PROVISION = ["BootFailed", "ProviderError", "Throttled", "CapacityError", "NeverHeardOf"]
PERMANENT = ["QuotaError", "InvalidSpec", "StoreDenied"]


def _last(state: CampaignState) -> Incident:
    return state.incidents[-1]


def _fail_newest(world: World, failure: str) -> None:
    """The newest machine fails and is gone; time passes until its slot is filled again."""
    node, asked = world.started[-1], len(world.started)
    world.report(node, "failed", failure=failure, detail="why")
    world.report(node, "gone")
    for _ in range(5):
        if len(world.started) > asked or world.state.outcome is not None:
            return
        world.wait()


@pytest.mark.parametrize("failure", FREE)
def test_machines_that_come_and_go_are_replaced_at_once_and_without_limit(failure: str) -> None:
    world = training()
    world.report(world.started[1], "failed", failure=failure, noticed_at=7.0, last_progress_at=3.0, detail="why")
    assert (world.started[-1].slot, world.started[-1].attempt) == (1, 2)
    incident = _last(world.state)
    assert (incident.slot, incident.attempt, incident.decision) == (1, 1, "replace now")
    assert (incident.happened_at, incident.noticed_at, incident.mended_at) == (3.0, 7.0, None)
    for _ in range(40):
        _fail_newest(world, failure)
    assert world.state.outcome is None
    assert world.started[-1].attempt == 42


def test_machines_lost_again_and_again_before_they_contribute_are_backed_off() -> None:
    world = training(failures={"backoff_seconds": 2.0, "max_backoff_seconds": 5.0})
    gaps: list[float] = []
    for _ in range(5):
        before = world.now
        _fail_newest(world, "Lost")
        gaps.append(round(world.now - before, 1))
    assert gaps == [0.0, 2.0, 4.0, 5.0, 5.0]


def test_a_round_that_counts_ends_the_series_of_failures() -> None:
    world = training(fleet={"slots": 1})
    for _ in range(3):
        _fail_newest(world, "BootFailed")
    assert world.state.slots[0].failures_in_a_row == 3
    world.report(world.started[-1], "ready")
    world.job_ends(rounds=1)
    assert world.state.slots[0].failures_in_a_row == 0


def test_a_crash_before_the_first_round_is_backed_off_and_after_one_is_replaced_at_once() -> None:
    world = training(fleet={"slots": 1})
    world.report(world.started[-1], "failed", failure="TrainerCrashed")
    assert _last(world.state).decision == "replace in 1 s"
    world.wait()
    world.report(world.started[-1], "ready")
    world.job_ends(rounds=1)
    world.report(world.started[-1], "failed", failure="TrainerCrashed")
    assert _last(world.state).decision == "replace now"


def test_the_replacement_being_ready_mends_the_incident() -> None:
    world = training()
    world.report(world.started[2], "failed", failure="Lost")
    world.tick(4.0)
    assert _last(world.state).decided_at == 0.0
    world.report(world.started[-1], "ready")
    assert _last(world.state).mended_at == 4.0


@pytest.mark.parametrize("failure", PROVISION)
def test_starts_that_fail_are_backed_off_until_the_slots_budget_is_spent(failure: str) -> None:
    world = World.of(failures={"provision": 3}, fleet={"slots": 1})
    world.tick()
    waits: list[float] = []
    for _ in range(3):
        before = world.now
        _fail_newest(world, failure)
        waits.append(round(world.now - before, 1))
    assert waits == [1.0, 2.0, 4.0]
    assert world.state.outcome is None
    _fail_newest(world, failure)
    assert world.state.outcome == "failed"
    assert world.state.failure == "slot 0: 4 starts failed in a row; last: why"


def test_failed_starts_of_different_slots_do_not_add_up() -> None:
    world = World.of(failures={"provision": 1}, fleet={"slots": 3})
    world.tick()
    for node in list(world.started):
        world.report(node, "failed", failure="CapacityError")
    assert world.state.outcome is None


@pytest.mark.parametrize("failure", PERMANENT)
def test_what_trying_again_cannot_help_ends_the_campaign_at_once(failure: str) -> None:
    world = training()
    world.report(world.started[0], "failed", failure=failure, detail="limit is 0")
    assert world.state.outcome == "failed"
    assert world.state.failure.endswith(": limit is 0")
    assert world.state.phase is Phase.RELEASING
    run_well(world)
    assert world.state.phase is Phase.FAILED


def test_errors_of_the_recipe_have_one_budget_for_the_whole_campaign() -> None:
    world = training(failures={"user_code": 2})
    for node in world.started[:2]:
        world.report(node, "failed", failure="UserCodeError", detail="ZeroDivisionError")
    assert world.state.outcome is None
    world.report(world.started[2], "failed", failure="UserCodeError", detail="ZeroDivisionError")
    assert world.state.outcome == "failed"
    assert world.state.failure == "the recipe failed 3 times: ZeroDivisionError"
    assert _last(world.state).decision == "fail: the recipe's budget is spent"


def test_an_unknown_machine_keeps_its_seat_until_it_is_known_again() -> None:
    world = training()
    world.report(world.started[1], "unknown", detail="the provider does not answer")
    world.tick(10_000.0)
    assert len(world.started) == 3
    assert world.told == set()
    assert world.state.ready_nodes == 2
    world.report(world.started[1], "ready")
    assert world.state.ready_nodes == 3


def test_reports_with_a_foreign_nonce_or_of_a_life_that_is_over_change_nothing() -> None:
    world = training()
    old = world.started[0]
    world.report(old.model_copy(update={"nonce": "someone else"}), "failed", failure="QuotaError")
    assert world.state.outcome is None
    assert world.state.ready_nodes == 3
    world.report(old, "failed", failure="Lost")
    world.report(old, "gone")
    before = world.state.model_dump(exclude={"start_allowance", "start_allowance_at"})
    for kind in ("booting", "ready", "unknown", "draining", "gone"):
        world.report(old, kind)
    world.report(old, "failed", failure="QuotaError")
    assert world.state.model_dump(exclude={"start_allowance", "start_allowance_at"}) == before


def test_a_late_ready_of_a_machine_that_leaves_does_not_bring_it_back() -> None:
    world = training()
    world.report(world.started[0], "failed", failure="Lost")
    world.report(world.started[0], "ready")
    assert [life.key for life in world.state.nodes.values() if life.present] == ["1-1", "2-1", "0-2"]


def test_a_taken_workflow_id_costs_an_attempt_and_nothing_else() -> None:
    world = World.of(fleet={"slots": 1})
    world.tick()
    world.refuse(world.started[0])
    assert [(node.slot, node.attempt) for node in world.started] == [(0, 1), (0, 2)]
    assert world.state.incidents == []


def test_a_job_that_fails_is_tried_again_later_each_time_until_the_campaign_gives_up() -> None:
    world = training()
    waits: list[float] = []
    for _ in range(MAX_JOB_FAILURES - 1):
        world.job_fails()
        assert world.job is None
        due = wake_at(world.state, now=world.now)
        assert due is not None
        waits.append(due - world.now)
        world.wait()
        assert world.job is not None
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    world.job_fails()
    assert world.state.failure == "the aggregator failed 10 times without progress; last: it broke"


def test_a_job_that_succeeds_mends_the_failures_before_it() -> None:
    world = training()
    world.job_fails()
    world.wait()
    world.job_ends(rounds=1)
    assert world.state.job_failures == 0
    assert _last(world.state).kind == "aggregator_failed"
    assert _last(world.state).mended_at == world.now


def test_a_permanent_failure_of_a_job_ends_the_campaign() -> None:
    world = training()
    world.job_fails(permanent=True, failure="StoreDenied")
    assert (world.state.outcome, world.state.failure) == ("failed", "it broke")


def test_an_interrupted_leg_counts_as_no_failure() -> None:
    world = training()
    world.command(m.CheckpointCommand())
    world.job_fails(failure="Interrupted")
    assert world.state.job_failures == 0
    assert world.state.incidents == []


def test_divergence_rolls_back_to_the_checkpoint_until_its_budget_is_spent() -> None:
    world = training(failures={"diverged": 2})
    for count in (1, 2):
        world.job_ends(rounds=1, diverged=True)
        assert world.state.phase is Phase.ROLLING_BACK
        assert world.job is not None
        assert world.job.kind == "rollback"
        version = world.state.version
        world.job_ends()
        assert world.state.version == version + 1, "a rollback is a version of its own"
        assert world.state.merged_rounds == count
        assert _last(world.state).decision == "rolled back to v0"
        assert _last(world.state).mended_at is not None
        assert world.job.kind == "leg"
    world.job_ends(rounds=1, diverged=True)
    assert world.state.outcome == "failed"
    assert world.state.failure.startswith("diverged 3 times (failures.diverged = 2)")


def test_a_divergence_while_paused_is_rolled_back_at_once() -> None:
    world = training()
    world.command(m.PauseCommand())
    world.job_ends(rounds=1, diverged=True)
    assert world.job is not None
    assert world.job.kind == "rollback"
    while world.job is not None:
        world.job_ends()
    assert world.state.phase is Phase.PAUSED


def test_incidents_in_the_state_are_bounded_and_closed_ones_go_to_the_journal_in_stretches() -> None:
    world = training()
    for _ in range(2 * KEPT + 10):
        _fail_newest(world, "Preempted")
    assert world.state.incident_sequence == 2 * KEPT + 10
    assert KEPT <= len(world.state.incidents) <= 2 * KEPT
    assert world.journal is None, "all are open: nobody became ready"
    world.report(world.started[-1], "ready")
    assert world.journal is not None
    assert len(world.journal.entries) >= FLUSH_AT
    world.journal_written()
    assert world.state.journaled_through == world.state.incident_sequence
