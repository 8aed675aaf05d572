"""How campaigns end: completed, out of budget, cancelled; the last journal; and how they continue as new."""

from __future__ import annotations

import pytest

from anabasis.campaign import events as e
from anabasis.campaign import messages as m
from anabasis.campaign.planner import FINISH_SECONDS, RELEASE_SECONDS, wake_at
from anabasis.campaign.reducer import MAX_JOURNAL_FAILURES, resume_from_store
from anabasis.campaign.status import Phase
from anabasis.campaign.view import result_of, status_of
from tests.campaign.world import World, new_state, run_well, training


def _all_gone(world: World) -> None:
    for node in list(world.machines.values()):
        world.report(node, "gone")


def _finish_training(world: World) -> None:
    while world.state.outcome is None:
        world.job_ends()


def test_a_campaign_in_which_all_goes_well_completes_and_publishes_its_last_version() -> None:
    world = training(target={"rounds": 25})
    phases = [world.state.phase]
    while world.state.outcome is None:
        world.job_ends()
        phases.append(world.state.phase)
    assert phases == [
        *[Phase.TRAINING, Phase.CHECKPOINTING] * 3, Phase.PUBLISHING, Phase.RELEASING,
    ]  # fmt: skip
    run_well(world)
    assert world.state.phase is Phase.COMPLETED
    result = result_of(world.state, now=world.now)
    assert (result.version, result.model, result.model_number, result.checkpoint_version) == (25, "c", 1, 25)
    assert result.tokens_total == 250


@pytest.mark.parametrize(("target", "version"), [({"rounds": 99, "tokens": 45}, 5), ({"rounds": 99, "loss": 2.0}, 1)])
def test_tokens_and_loss_are_targets_too(target: dict[str, float], version: int) -> None:
    world = training(target=target)
    for _ in range(version):
        assert world.job is not None
        assert world.job.kind == "leg"
        assert not world.state.target_reached
        world.progress(rounds=1)
    assert world.state.target_reached
    assert world.roster is not None
    assert world.roster.roster.phase == "finished"


def test_machines_are_released_when_the_target_is_reached_not_when_the_model_is_published() -> None:
    world = World(new_state(quiet_finish=False))
    world.tick()
    for node in world.started:
        world.report(node, "ready")
    world.progress(rounds=20)
    assert world.state.outcome is None
    assert world.told == {node.nonce for node in world.started}


def test_machines_that_read_of_the_end_themselves_are_told_only_when_they_stay() -> None:
    world = training()
    world.job_ends(rounds=10)
    world.job_ends()
    world.job_ends(rounds=10)
    assert world.state.target_reached
    assert world.told == set()
    world.report(world.started[0], "gone")
    due = wake_at(world.state, now=world.now)
    assert due == world.now + FINISH_SECONDS
    world.tick(FINISH_SECONDS)
    assert world.told == {node.nonce for node in world.started[1:]}


def test_a_spent_budget_stops_machines_takes_a_checkpoint_and_fails_with_the_figures() -> None:
    world = training(budget={"max_cost": 3.0, "price_per_node_hour": 1.0})
    world.progress(rounds=4)
    assert wake_at(world.state, now=world.now) == pytest.approx(3_600.0)
    world.tick(3_600.0)
    assert world.state.outcome == "failed"
    assert world.told == {node.nonce for node in world.started}
    assert any(isinstance(d, e.InterruptJob) for d in world.last)
    world.job_ends(rounds=0)
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("checkpoint", 4)
    run_well(world)
    assert world.state.checkpoint_version == 4
    assert "3.00 spent in 3.00 node-hours (budget.max_cost = 3.0" in world.state.failure


def test_a_budget_is_warned_of_once_at_four_fifths_and_anew_when_it_is_set() -> None:
    world = training(budget={"max_node_hours": 3.0})
    world.tick(2_800.0)
    assert world.state.incidents == []
    world.tick(100.0)
    world.tick(100.0)
    assert [one.kind for one in world.state.incidents] == ["budget_warning"]
    assert world.state.incidents[0].text == "81% of the budget is spent"
    world.command(m.SetBudgetCommand(max_node_hours=6.0))
    world.tick(3_000.0)
    assert [one.kind for one in world.state.incidents] == ["budget_warning", "budget_warning"]
    assert world.state.outcome is None


def test_a_budget_taken_away_stops_nothing() -> None:
    world = training(budget={"max_node_hours": 3.0})
    world.command(m.SetBudgetCommand())
    world.tick(100_000.0)
    assert world.state.outcome is None
    world.command(m.SetBudgetCommand(max_node_hours=1.0))
    assert world.state.outcome == "failed", "a limit below what is spent stops at once"


def test_cancel_releases_every_machine_and_keeps_a_checkpoint_of_the_newest_version() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    assert world.told == {node.nonce for node in world.started}
    world.job_ends(rounds=3)
    assert world.job is not None
    assert (world.job.kind, world.job.version) == ("checkpoint", 3)
    run_well(world)
    assert world.state.phase is Phase.CANCELLED
    assert world.state.checkpoint_version == 3
    assert world.state.published_version is None


def test_cancel_whose_last_checkpoint_fails_keeps_the_one_before() -> None:
    world = training()
    world.job_ends()
    world.job_ends()
    world.feed(e.CancelRequested(at=world.now))
    world.job_ends(rounds=1)
    world.job_fails()
    assert world.job is None, "one try is enough on the way out"
    run_well(world)
    assert world.state.phase is Phase.CANCELLED
    assert world.state.checkpoint_version == 10


def test_the_first_reason_to_end_is_the_one_that_counts() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    world.report(world.started[0], "failed", failure="QuotaError", detail="limit is 0")
    world.job_fails(permanent=True)
    run_well(world)
    assert (world.state.phase, world.state.failure) == (Phase.CANCELLED, "")


def test_the_end_waits_for_machines_to_be_gone() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    world.roster_written()
    world.job_ends(rounds=0)
    for node in world.started[:2]:
        world.report(node, "gone")
    assert world.journal is None
    assert status_of(world.state, now=world.now).waiting_for == "1 nodes to be gone"
    world.report(world.started[2], "gone")
    assert world.journal is not None
    assert world.journal.final
    assert world.ends == []
    world.journal_written()
    assert [end.outcome for end in world.ends] == ["cancelled"]


def test_the_end_waits_for_a_machine_that_cannot_be_released_only_so_long() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    world.roster_written()
    world.job_ends(rounds=0)
    assert wake_at(world.state, now=world.now) == RELEASE_SECONDS
    world.tick(RELEASE_SECONDS)
    world.journal_written()
    assert world.state.phase is Phase.CANCELLED


def test_the_last_journal_carries_open_incidents_and_the_ledger() -> None:
    world = training()
    world.report(world.started[0], "failed", failure="Lost", detail="no heartbeat")
    world.tick(10.0)
    world.feed(e.CancelRequested(at=world.now))
    while world.roster is not None:
        world.roster_written()
    world.job_ends(rounds=0)
    _all_gone(world)
    assert world.journal is not None
    lost, ledger = world.journal.entries
    assert (lost["kind"], lost["mended_at"]) == ("lost", None)
    assert (ledger["kind"], ledger["outcome"]) == ("ledger", "cancelled")
    assert sum(ledger["ledger"].values()) == pytest.approx(ledger["paid_node_seconds"]) == pytest.approx(30.0)


def test_a_journal_that_cannot_be_written_does_not_hold_up_the_end() -> None:
    world = training()
    world.feed(e.CancelRequested(at=world.now))
    world.roster_written()
    world.job_ends(rounds=0)
    _all_gone(world)
    for _ in range(MAX_JOURNAL_FAILURES):
        assert world.ends == []
        world.journal_written(ok=False)
        world.tick(60.0)
    assert [end.outcome for end in world.ends] == ["cancelled"]


def test_nothing_happens_to_a_campaign_that_is_over() -> None:
    world = training(target={"rounds": 2})
    run_well(world)
    before = world.state.model_dump()
    for event in (
        e.Ticked(at=1e6),
        e.CancelRequested(at=1e6),
        e.ContinueRequested(at=1e6),
        e.RosterWritten(at=1e6, ok=False),
        e.JobFailed(at=1e6, job=world.state.job_number, failure="x", text="x", permanent=True),
        e.Commanded(at=1e6, command=m.ScaleCommand(slots=8)),
    ):
        assert world.feed(event) == []
    assert world.state.model_dump() == before
    assert wake_at(world.state, now=1e6) is None


def test_continue_as_new_comes_only_at_rest_and_starts_nothing_until_then() -> None:
    world = training()
    world.report(world.started[1], "failed", failure="Lost")  # a roster is in flight, and a machine is asked for
    asked = len(world.started)
    world.feed(e.ContinueRequested(at=world.now))
    assert [type(d) for d in world.last] == [e.InterruptJob]
    world.report(world.started[0], "failed", failure="Lost")
    assert len(world.started) == asked, "a start might be lost with the run"
    world.job_ends(rounds=2)
    assert world.job is None
    assert world.rests == 0
    while world.roster is not None:
        world.roster_written()
    assert world.rests == 1
    world.reload()
    assert len(world.started) == asked + 1
    run_well(world)
    assert world.state.phase is Phase.COMPLETED
    assert world.state.merged_rounds == 20


def test_a_campaign_that_is_cancelled_while_it_comes_to_rest_ends_instead() -> None:
    world = training()
    world.feed(e.ContinueRequested(at=world.now))
    world.feed(e.CancelRequested(at=world.now))
    run_well(world)
    assert world.rests == 0
    assert world.state.phase is Phase.CANCELLED


def test_a_later_run_goes_on_where_the_store_says_the_last_one_committed() -> None:
    state = new_state()
    prepared = m.PrepareResult(
        version=7, parameters=1, samples=1, dataset_tokens=1, merged_rounds=6, tokens_total=60, loss=2.5,
        checkpoint_version=5, roster_generation=9, journal_sequence=4, attempts={"0": 3, "2": 1},
    )  # fmt: skip
    resume_from_store(state, prepared)
    world = World(state)
    world.tick()
    assert [(node.slot, node.attempt) for node in world.started] == [(0, 4), (1, 1), (2, 2)]
    assert world.roster is not None
    assert world.roster.roster.generation == 10
    run_well(world)
    assert (world.state.merged_rounds, world.state.version, world.state.tokens_total) == (20, 21, 200)
