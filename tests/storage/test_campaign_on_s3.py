"""A whole campaign's data plane on a real S3 server that misbehaves: the same bits as on a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anabasis.campaign.records import keys
from anabasis.storage.base import ObjectStore
from anabasis.storage.resilient import Resilient
from anabasis.storage.versions import audit_offsets
from tests.support.flaky import FaultProxy
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.faults]

VERSIONS = 5
NESTEROV = {"outer_momentum": 0.9, "dense_warmup_rounds": 0}


@pytest.mark.parametrize("fault", ["pass", "cut", "lose", "error", "error_after"])
def test_a_campaign_is_the_same_on_an_s3_that_fails_every_fourth_time(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from anabasis.training.checkpointing import write_checkpoint
    from tests.aggregation import world as stage

    monkeypatch.setattr("anabasis.storage.s3_connection.FIRST_DELAY_SECONDS", 0.002)
    monkeypatch.setattr("anabasis.storage.resilient.FIRST_DELAY_SECONDS", 0.002)

    def run(world: Any) -> None:
        for version in (2, 4, VERSIONS):
            aggregator = world.aggregator(on_tick=world.nodes(0, 1))  # a fresh one: it recovers from the store
            aggregator.advance(until_version=version)
            write_checkpoint(aggregator, version=version, keep=2)

    calm = stage.World(tmp_path / "calm", training=NESTEROV)
    run(calm)
    with FaultProxy(s3_server.port, seed=7) as proxy:
        plain = s3_server.store(f"campaign-{fault}", endpoint=proxy.endpoint)
        remote: ObjectStore = Resilient(plain, on_wait=lambda *_: None, give_up_after_seconds=60.0)
        monkeypatch.setattr(stage, "open_store", lambda _: remote)
        stormy = stage.World(tmp_path / "stormy", training=NESTEROV)
        proxy.set(fault, share=0.25)
        run(stormy)
        proxy.set("pass")
        assert fault == "pass" or proxy.seen[fault] > 20
        root = remote.child(keys.campaign_root(stage.NAME))
        assert audit_offsets(root) == []
        assert stage.facts(root, range(VERSIONS + 1)) == stage.facts(calm.store, range(VERSIONS + 1))
        assert [i.key for i in root.list("checkpoints/")] == [i.key for i in calm.store.list("checkpoints/")]
        assert [i.key for i in root.list("params/")] == [i.key for i in calm.store.list("params/")]
