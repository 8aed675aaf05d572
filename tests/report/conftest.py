from __future__ import annotations

from pathlib import Path

import pytest

from anabasis.report import Report, build_report
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from tests.report.samples import START, eventful, incident, manifests, write_campaign


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """The root of a fresh store in a folder."""
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture(scope="session")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of 2,000 versions with a rollback, and 1,499 incidents."""
    root = open_store(f"file://{tmp_path_factory.mktemp('long')}/store")
    entries: list[object] = [incident(n, at=START + 11 * n).model_dump(mode="json") for n in range(1, 1_500)]
    write_campaign(root, manifests(2_000, slots=2, rollback_at=900), journal=[entries])
    return build_report(root, "demo")


@pytest.fixture(scope="session")
def eventful_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of the campaign `demo` that `samples.eventful` writes, without a status."""
    root = open_store(f"file://{tmp_path_factory.mktemp('report')}/store")
    eventful(root)
    return build_report(root, "demo")
