"""A Temporal with its Web UI, workers that serve campaigns, and a real headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.processes import Processes
from tests.support.temporal import TemporalServer

CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Debian's, with their paths: selenium would otherwise look for programs to download."""

PAGE_SECONDS = 60.0
"""For one page of the UI to load and draw: a second or two, more on a crowded machine."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server whose campaigns run. `tiny(name)` is a spec that completes within seconds there."""

    server: TemporalServer
    tiny: Callable[[str], dict[str, Any]]

    def page(self, path: str) -> str:
        return f"{self.server.ui_url}/namespaces/{self.server.env['TEMPORAL_NAMESPACE']}/{path}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The one place that says which workers serve `TrainingCampaign` here."""
    folder = tmp_path_factory.mktemp("browser")
    server = TemporalServer.started(folder / "temporal", ui=True)
    processes = Processes(folder)
    try:
        worker = processes.python(
            "-m", "tests.support.standin_campaign", env={**server.env, "TEMPORAL_CONFIG_FILE": os.devnull}
        )
        worker.wait_for_text("serving")
        yield Served(server, tiny=lambda name: {"name": name, "target": {"rounds": 3}})
    finally:
        processes.stop_all()
        server.kill()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Chromium with a profile of its own, which goes with the test."""
    for program in (CHROMIUM, CHROMEDRIVER):
        if not program.exists():
            pytest.skip(f"{program} is missing: run scripts/system-packages.sh")
    profile = tmp_path_factory.mktemp("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={profile}",
        "--window-size=1400,1300",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))
    driver.set_page_load_timeout(PAGE_SECONDS)
    yield driver
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)
