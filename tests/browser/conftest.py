"""The real stack with Temporal's Web UI, and a real headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.processes import Processes
from tests.support.stack import Stack
from workers.state_dir import StateDir

CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Debian's, with their paths: selenium would otherwise look for programs to download."""

PAGE_SECONDS = 60.0
"""For one page of the UI to load and draw: a second or two, more on a crowded machine."""


@dataclass(frozen=True, slots=True)
class Served:
    """A stack whose campaigns run for real. `tiny(name)` is a spec that completes within seconds there."""

    address: str
    ui_url: str

    def page(self, path: str) -> str:
        return f"{self.ui_url}/namespaces/default/{path}"

    def tiny(self, name: str) -> dict[str, Any]:
        """What a person would type into the form."""
        return {
            "name": name,
            "recipe": "tiny",
            "target": {"rounds": 3},
            "data": {"tokenizer": "bytes", "max_bytes": 100000, "sequence_length": 64, "partitions": 4},
            "fleet": {"slots": 2},
            "training": {"inner_steps": 10},
        }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`anabasis up`, as a user has it."""
    folder = tmp_path_factory.mktemp("browser")
    processes = Processes(folder)
    stack = Stack(processes, folder / "home")
    try:
        stack.up()
        record = StateDir(stack.home).read()
        assert record is not None
        yield Served(record.address, record.ui_url)
        stack.down()
    finally:
        processes.stop_all()


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
