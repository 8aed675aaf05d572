from __future__ import annotations

from pathlib import Path

import pytest

from anabasis.report import Report, build_report
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from tests.report.samples import eventful


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """The root of a fresh store in a folder."""
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture(scope="module")
def eventful_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of the campaign `demo` that `samples.eventful` writes, without a status."""
    root = open_store(f"file://{tmp_path_factory.mktemp('report')}/store")
    eventful(root)
    return build_report(root, "demo")
