"""`models`, `export`, `report` and `compare`: read from a store, with or without Temporal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from anabasis.campaign.records import BlobRef, ModelVersion
from anabasis.cli import exits
from anabasis.storage import registry
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from tests.cli.committed import write_versions
from tests.cli.conftest import Cli
from tests.support.temporal import TemporalServer
from workers.temporal_server import free_port

FILES = {"model.safetensors": b"weights" * 1_000, "config.json": b"{}"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store with a campaign and one published model; the commands' default store. No Temporal answers."""
    folder = tmp_path / "store"
    folder.mkdir()
    root = write_versions(folder, "demo", first=0, last=30, ended_at=time.time())
    files = {}
    for name, content in FILES.items():
        digest = hash_bytes(content)
        key = f"models/demo/files/{digest}/{name}"
        root.put(key, content)
        files[name] = BlobRef(key=key, hash=digest, size_bytes=len(content))
    registry.publish(
        root,
        ModelVersion(
            model="demo", number=0, campaign="demo", campaign_version=30, files=files, loss=2.5, validation_loss=2.6,
            tokens_total=30_000, published_at=time.time(),
        ),
    )  # fmt: skip
    monkeypatch.setenv("ANABASIS_STORE", folder.as_uri())
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    return root


@pytest.mark.usefixtures("store")
def test_models_lists_what_is_published(cli_run: Cli) -> None:
    outcome = cli_run("models")
    assert outcome.code == exits.OK, outcome
    assert "2.6000" in outcome.out
    listed = json.loads(cli_run("models", "--json").out)
    assert [(one["model"], one["number"], one["campaign_version"]) for one in listed] == [("demo", 1, 30)]
    assert json.loads(cli_run("models", "other", "--json").out) == []


@pytest.mark.usefixtures("store")
def test_export_writes_verified_files_and_can_be_repeated(cli_run: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    outcome = cli_run("export", "demo", folder, "--json")
    assert outcome.code == exits.OK, outcome
    assert json.loads(outcome.out)["files"] == {name: len(content) for name, content in FILES.items()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert cli_run("export", "demo", folder).code == exits.OK
    (folder / "config.json").write_text("mine")
    refused = cli_run("export", "demo", folder)
    assert refused.code == exits.FAILED
    assert "config.json" in refused.err
    assert cli_run("export", "demo", folder, "--force", "--number", 1).code == exits.OK
    assert (folder / "config.json").read_bytes() == b"{}"


def test_export_refuses_what_is_not_as_its_hash_promises(cli_run: Cli, store: ObjectStore, tmp_path: Path) -> None:
    ref = registry.list_models(store)[0].files["config.json"]
    store.put(ref.key, b"[]")
    outcome = cli_run("export", "demo", tmp_path / "out")
    assert outcome.code == exits.FAILED
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.usefixtures("store")
def test_models_and_stores_that_are_not_there(cli_run: Cli, tmp_path: Path) -> None:
    assert cli_run("export", "nobody", tmp_path / "out").code == exits.NOT_FOUND
    assert cli_run("export", "demo", tmp_path / "out", "--number", 7).code == exits.NOT_FOUND
    absent = tmp_path / "no-store"
    for command in (("models",), ("export", "demo"), ("report", "demo")):
        outcome = cli_run(*command, "--store", absent.as_uri())
        assert outcome.code == exits.NOT_FOUND, outcome
        assert "--store" in outcome.err
    assert not absent.exists()


@pytest.mark.usefixtures("store")
def test_a_report_needs_no_temporal(cli_run: Cli, tmp_path: Path) -> None:
    outcome = cli_run("report", "demo")
    assert outcome.code == exits.OK, outcome
    assert "demo" in outcome.out
    assert "from the store alone" in outcome.err
    assert json.loads(cli_run("report", "demo", "--json").out)["campaign"] == "demo"
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    outcome = cli_run("report", "demo", "--html", page, "--png", picture)
    assert outcome.code == exits.OK, outcome
    assert page.read_text().startswith("<!doctype html>")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(page) in outcome.out
    assert cli_run("report", "nobody").code == exits.NOT_FOUND


@pytest.mark.usefixtures("store")
def test_reports_that_cannot_be_written_say_where(cli_run: Cli, tmp_path: Path) -> None:
    outcome = cli_run("report", "demo", "--html", tmp_path / "no" / "folder.html")
    assert outcome.code == exits.FAILED
    assert "folder.html" in outcome.err


def test_two_campaigns_are_compared(cli_run: Cli, store: ObjectStore, tmp_path: Path) -> None:
    write_versions(tmp_path / "store", "twin", first=0, last=30, ended_at=time.time())
    outcome = cli_run("compare", "demo", "twin")
    assert outcome.code == exits.OK, outcome
    assert "bit-identical" in outcome.out
    compared = json.loads(cli_run("compare", "demo", "twin", "--json", "--over", "tokens").out)
    assert (compared["bit_identical"], compared["axis"]) == (True, "tokens")
    assert cli_run("compare", "demo", "twin", "--over", "weeks").code == exits.USAGE
    assert store.head("models/demo/registry.json") is not None


def test_status_and_watch_draw_the_curve_of_the_store(
    cli_run: Cli, temporal_env: TemporalServer, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "curve"
    folder.mkdir()
    write_versions(folder, name, first=0, last=40, ended_at=time.time())
    started = cli_run(
        "start", "--name", name, "--set", f"store={folder.as_uri()}", "--set", "target.rounds=3", "--wait"
    )
    assert started.code == exits.OK, started
    assert "training loss" in cli_run("status", name).out
    report = cli_run("report", name)
    assert report.code == exits.OK
    assert "store alone" not in report.err
