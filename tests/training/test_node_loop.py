"""A node's life, with the real store and the real aggregator in its waits."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from anabasis.campaign.records import keys
from anabasis.errors import Fenced, StoreUnavailable, UserCodeError
from anabasis.storage.versions import audit_offsets, read_version
from anabasis.training.checkpointing import roll_back, write_checkpoint
from anabasis.training.parameters import fingerprint
from tests.aggregation.world import World
from tests.support.wait import wait_until_sync
from tests.training.stage import Aggregating, Node, finish, learnable, mail_of

torch.set_num_threads(1)

RECIPES = "tests.support.recipes"


def committed(world: World, version: int) -> list[int]:
    return [entry.header.slot for entry in read_version(world.store, version).contributions]


def assert_sound(node: Node) -> None:
    """The node holds exactly the version that it says it holds."""
    assert fingerprint(node.loop._replica.flat) == read_version(node.world.store, node.progress.version).fingerprint


def test_a_node_alone_trains_a_campaign(tmp_path: Path) -> None:
    world = learnable(tmp_path, checkpoint={"evaluate_every_rounds": 3})
    node = Node(world, during=Aggregating(world, until=12))
    assert node.run() == "finished"
    first, last = read_version(world.store, 1), read_version(world.store, 12)
    assert first.loss is not None
    assert last.loss is not None
    assert last.loss < first.loss - 0.5
    assert audit_offsets(world.store) == []
    assert last.tokens_total <= node.progress.tokens <= last.tokens_total + 640  # perhaps one round too many
    assert sum(last.offsets.values()) * 16 == last.tokens_total
    evaluated = {v: read_version(world.store, v).validation_loss for v in range(1, 13)}
    assert [v for v, loss in evaluated.items() if loss is not None] == [4, 7, 10]  # of versions 3, 6, 9
    assert node.progress.version >= 11
    assert_sound(node)


def test_the_accounting_of_a_contribution(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    node = Node(world)
    node.during = node.stop
    assert node.run() == "stopped"
    header = mail_of(world, 0)
    plan = read_version(world.store, 0).plan
    assert plan is not None
    assert header.steps == plan.assignments["0"].inner_steps
    assert header.tokens == header.steps * 4 * 16
    assert header.train_seconds > 0
    assert header.sync_seconds > 0
    assert header.wait_seconds >= 0
    assert math.isfinite(header.loss)
    assert sum(end - first for first, end in header.consumed.values()) == header.steps * 4


def test_several_nodes_train_together(tmp_path: Path) -> None:
    world = World(tmp_path, fleet={"slots": 3}, training={"inner_steps": 6, "deterministic": False},
                  rounds={"min_deadline_seconds": 20}, target={"rounds": 1_000})  # fmt: skip
    pause = threading.Event()
    nodes = [Node(world, slot=slot, during=lambda: pause.wait(0.005)) for slot in range(3)]
    outcomes: list[str] = []
    threads = [threading.Thread(target=lambda node=node: outcomes.append(node.run())) for node in nodes]
    for thread in threads:
        thread.start()
    world.aggregator(sleep=lambda _: pause.wait(0.005)).advance(until_version=5)
    finish(world)
    for thread in threads:
        thread.join(30)
    assert outcomes == ["finished"] * 3
    assert [committed(world, version) for version in range(1, 6)] == [[0, 1, 2]] * 5
    assert audit_offsets(world.store) == []


def run_deterministic(folder: Path, *, restart_at: int | None, new_attempt: bool) -> str:
    world = learnable(
        folder,
        recipe="gpt",
        recipe_options={"layers": 1, "width": 16, "heads": 2, "dropout": 0.1},
        training={"deterministic": True, "inner_steps": 4, "outer_momentum": 0.9},
    )
    aggregating = Aggregating(world, until=5)
    node = Node(world)

    def during() -> None:
        if restart_at is not None and world.newest.version == restart_at and node.attempt == 1:
            node.stop()
        else:
            aggregating()

    node.during = during
    if node.run() == "stopped":
        attempt = 2 if new_attempt else 1
        world.seat(0, attempt=attempt)
        node = Node(world, attempt=attempt, during=aggregating)
        assert node.run() == "finished"
    return world.newest.fingerprint


@pytest.mark.parametrize("new_attempt", [False, True])
@pytest.mark.parametrize("restart_at", [0, 1, 3])
def test_a_deterministic_run_does_not_depend_on_restarts(tmp_path: Path, restart_at: int, new_attempt: bool) -> None:
    undisturbed = run_deterministic(tmp_path / "a", restart_at=None, new_attempt=False)
    assert run_deterministic(tmp_path / "b", restart_at=restart_at, new_attempt=new_attempt) == undisturbed


def test_mail_that_vanishes_is_sent_again(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    node = Node(world)
    key = keys.mail(0, 0, 1)
    removed = 0

    def during() -> None:
        nonlocal removed
        if removed < 2 and world.store.head(key):
            world.store.delete(key)
            removed += 1
        elif removed == 2 and world.store.head(key):
            node.stop()

    node.during = during
    assert node.run() == "stopped"
    assert mail_of(world, 0).slot == 0


def test_mail_that_was_damaged_is_sent_again_and_merged(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    aggregating = Aggregating(world, until=2)
    node = Node(world)
    damaged = False

    def during() -> None:
        nonlocal damaged
        if not damaged:
            value = bytearray(world.store.get(keys.mail(0, 0, 1)))
            value[-5] ^= 1
            world.store.put(keys.mail(0, 0, 1), bytes(value))
            damaged = True
        aggregating()

    node.during = during
    assert node.run() == "finished"
    assert [incident.kind for incident in aggregating.incidents] == ["corrupt_contribution"]
    assert audit_offsets(world.store) == []
    assert committed(world, 1) == [0]


def test_a_restart_after_the_upload_adopts_it(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    first = Node(world)
    first.during = first.stop
    first.run()
    sent = mail_of(world, 0)
    second = Node(world)
    second.during = second.stop
    second.run()
    assert second.progress.steps == 0
    assert mail_of(world, 0) == sent
    third = Node(world, during=Aggregating(world, until=2))
    assert third.run() == "finished"
    assert read_version(world.store, 1).contributions[0].header == sent
    assert audit_offsets(world.store) == []


def test_a_damaged_upload_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    world.store.put(keys.mail(0, 0, 1), b"torn")
    node = Node(world, during=Aggregating(world, until=1))
    assert node.run() == "finished"
    assert node.progress.steps > 0


def test_what_was_not_committed_is_trained_again_and_leaves_no_residual(tmp_path: Path) -> None:
    world = learnable(tmp_path, fleet={"slots": 2})
    node = Node(world)
    residuals: list[Any] = []

    def during() -> None:
        version = world.newest.version
        residuals.append(node.residual)
        if version == 0:  # the round closes without this node, whose upload is lost
            world.store.delete(keys.mail(0, 0, 1))
            close_without_node(world)
            assert committed(world, 1) == [1]
        elif mail_of(world, 1) is not None:
            node.stop()

    node.during = during
    assert node.run() == "stopped"
    before, after = read_version(world.store, 0), mail_of(world, 1)
    assert residuals[0] is not None
    assert all(first == before.offsets[lane] for lane, (first, _) in after.consumed.items())
    assert node.loop._memory._residual_before is None, "the second round started without the first one's residual"


def test_a_round_that_closes_during_training_is_abandoned(tmp_path: Path) -> None:
    world = learnable(
        tmp_path,
        fleet={"slots": 2},
        recipe=f"{RECIPES}:Slow",
        training={"inner_steps": 400},
    )
    world.seat(0)
    node = Node(world)

    def close() -> None:
        close_without_node(world)
        wait_until_sync(lambda: node.progress.version == 1, seconds=20)
        node.stop()

    closing = threading.Timer(0.3, close)
    closing.start()
    assert node.run() == "stopped"
    closing.join()
    assert 0 < node.progress.steps < 400
    assert mail_of(world, 0) is None


def close_without_node(world: World) -> None:
    world.post(1)
    world.seat(1)
    world.aggregator().advance(until_version=1)
    world.seat(0, 1)


def test_someone_newer_in_the_slot_ends_the_node(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    node = Node(world, during=lambda: world.seat(0, attempt=2))
    with pytest.raises(Fenced, match="slot 0"):
        node.run()


def test_someone_newer_is_noticed_during_training(tmp_path: Path) -> None:
    world = learnable(tmp_path, recipe=f"{RECIPES}:Slow", training={"inner_steps": 400})
    node = Node(world)
    threading.Timer(0.2, lambda: world.seat(0, attempt=2)).start()
    with pytest.raises(Fenced):
        node.run()
    assert node.progress.steps < 400
    assert mail_of(world, 0) is None


def test_a_node_without_a_seat_waits_for_it(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    world.seat()
    node = Node(world)

    def during() -> None:
        if node.waited == 20:
            assert node.progress.steps == 0
            world.seat(0)
        if mail_of(world, 0) is not None:
            node.stop()

    node.during = during
    assert node.run() == "stopped"
    assert node.progress.steps > 0


def test_a_paused_campaign_is_waited_for(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    world.seat(0, phase="paused")
    node = Node(world)
    ticks: list[int] = []

    def during() -> None:
        ticks.append(node.progress.ticks)
        if node.waited == 20:
            assert node.progress.steps == 0
            world.seat(0)
        if mail_of(world, 0) is not None:
            node.stop()

    node.during = during
    assert node.run() == "stopped"
    assert set(node.phases[:20]) == {"paused"}
    assert ticks[-1] > ticks[0], "a waiting node shows that it lives"


def test_no_round_is_started_after_the_target(tmp_path: Path) -> None:
    world = learnable(tmp_path, target={"rounds": 1})
    world.seat(0, target_rounds=1)
    aggregating = Aggregating(world, until=1)
    node = Node(world)

    def during() -> None:
        if world.newest.version < 1:
            aggregating.aggregator.advance(until_version=1)
        elif node.progress.version == 1 and node.waited > 50:
            node.stop()

    node.during = during
    assert node.run() == "stopped"
    assert mail_of(world, 1) is None


def test_a_slot_that_is_not_planned_sits_out(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    world.seat(0, 5, slots=[0])
    node = Node(world, slot=5)
    node.during = lambda: node.stop() if node.waited > 50 else None
    assert node.run() == "stopped"
    assert node.progress.steps == 0


def test_after_a_rollback_the_node_begins_anew(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    aggregating = Aggregating(world, until=6)
    node = Node(world)
    rolled_back = False

    def during() -> None:
        nonlocal rolled_back
        if world.newest.version == 2:
            write_checkpoint(aggregating.aggregator, version=2, keep=2)
        if world.newest.version == 4 and not rolled_back:
            rolled_back = True
            roll_back(aggregating.aggregator, from_version=4, not_after=4)
            assert node.residual is not None
            return
        aggregating()

    node.during = during
    assert node.run() == "finished"
    assert read_version(world.store, 5).kind == "rollback"
    assert committed(world, 6) == [0]
    assert node.loop._trainer.inner.state().steps[0] <= 2 * 10, "the optimizer forgot what came before the rollback"
    assert audit_offsets(world.store) == []


def test_a_damaged_replica_is_loaded_anew(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    aggregating = Aggregating(world, until=4)
    node = Node(world)
    damaged = False

    def during() -> None:
        nonlocal damaged
        aggregating()
        if world.newest.version == 2 and not damaged:
            node.loop._replica.flat[7] += 1e-6
            damaged = True

    node.during = during
    assert node.run() == "finished"
    assert damaged
    assert node.progress.version >= 3
    assert_sound(node)
    assert committed(world, 4) == [0]


class Outage:
    """A store that does not answer while it is `down`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.down = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name == "child":
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if self.down:
                raise StoreUnavailable("nobody is there")
            return found(*arguments, **options)

        return call


def test_an_outage_of_the_store_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = learnable(tmp_path)
    outage = Outage(world.store)
    aggregating = Aggregating(world, until=3)
    node = Node(world, store=outage)  # type: ignore[arg-type]
    phases: list[str] = []
    tick = node.progress.tick

    def watch(phase: Any = None) -> None:
        tick(phase)
        if node.progress.phase == "store_unavailable":
            phases.append(node.progress.phase)
            if len(phases) == 3:
                outage.down = False

    monkeypatch.setattr(node.progress, "tick", watch)

    def during() -> None:
        aggregating()
        outage.down = len(phases) < 3 and world.newest.version == 2

    node.during = during
    assert node.run() == "finished"
    assert len(phases) >= 3


def test_a_stop_during_an_outage_is_obeyed(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    outage = Outage(world.store)
    outage.down = True
    node = Node(world, store=outage)  # type: ignore[arg-type]
    threading.Timer(0.1, node.stop).start()
    assert node.run() == "stopped"


def test_a_stop_during_training_sends_what_is_done(tmp_path: Path) -> None:
    world = learnable(tmp_path, recipe=f"{RECIPES}:Slow", training={"inner_steps": 400})
    node = Node(world)
    threading.Timer(0.3, node.stop).start()
    assert node.run() == "stopped"
    assert 0 < mail_of(world, 0).steps < 400
    assert mail_of(world, 0).steps == node.progress.steps


def test_a_deterministic_round_is_never_sent_in_part(tmp_path: Path) -> None:
    world = learnable(
        tmp_path,
        recipe=f"{RECIPES}:Slow",
        training={"inner_steps": 400, "deterministic": True},
    )
    node = Node(world)
    threading.Timer(0.3, node.stop).start()
    assert node.run() == "stopped"
    assert mail_of(world, 0) is None


def test_a_node_much_slower_than_planned_stops_in_time(tmp_path: Path) -> None:
    world = learnable(
        tmp_path,
        recipe=f"{RECIPES}:Slow",
        training={"inner_steps": 100, "min_inner_steps": 3},
        rounds={"min_deadline_seconds": 0.05},
    )
    node = Node(world)
    manifest = read_version(world.store, 0)
    assert manifest.plan is not None
    hurried = manifest.model_copy(update={"plan": manifest.plan.model_copy(update={"expected_seconds": 0.05})})
    node.loop._join()
    node.loop._refresh_roster()
    node.loop._replica.manifest = hurried
    node.loop._turn()
    assert mail_of(world, 0).steps == 3


def test_numbers_that_are_not_finite_are_sent_for_what_they_are_and_forgotten(tmp_path: Path) -> None:
    world = learnable(tmp_path, recipe=f"{RECIPES}:NotFinite", recipe_options={"from_call": 4})
    node = Node(world)
    node.during = node.stop
    assert node.run() == "stopped"
    assert math.isnan(mail_of(world, 0).loss)
    assert node.residual is None
    assert set(node.loop._trainer.inner.state().steps) == {0}
    world.aggregator().advance(until_version=1)
    assert world.newest.version == 0


def test_a_recipe_that_raises_ends_the_node_with_its_error(tmp_path: Path) -> None:
    world = learnable(tmp_path, recipe=f"{RECIPES}:Raising")
    with pytest.raises(UserCodeError, match="divides by zero"):
        Node(world).run()


def test_a_recipe_that_builds_another_model_here_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = learnable(tmp_path, recipe=f"{RECIPES}:Another")
    monkeypatch.setenv("FLAVOUR", "9")
    with pytest.raises(UserCodeError, match="another model"):
        Node(world).run()


def test_a_joiner_catches_up_and_contributes(tmp_path: Path) -> None:
    world = learnable(tmp_path)
    first = Node(world, during=(aggregating := Aggregating(world, until=4)))
    first.run()
    write_checkpoint(aggregating.aggregator, version=4, keep=2)
    world.seat(0, attempt=2)
    second = Node(world, attempt=2, during=Aggregating(world, until=6))
    assert second.run() == "finished"
    assert [entry.header.attempt for entry in read_version(world.store, 5).contributions] == [2]
    assert audit_offsets(world.store) == []
