"""A campaign started from Temporal's own Web UI: the form is filled in, the button is pressed, it completes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as conditions
from selenium.webdriver.support.wait import WebDriverWait

from anabasis.campaign.status import Phase
from anabasis.client import Anabasis
from tests.browser.conftest import PAGE_SECONDS, Served

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EDITOR = (By.CSS_SELECTOR, ".cm-content[contenteditable=true]")
START = (By.CSS_SELECTOR, "[data-testid=start-workflow-button]")

CAMPAIGN_SECONDS = 120.0
"""For a tiny campaign to complete, workers of a crowded machine included."""


@pytest.fixture(autouse=True)
def picture_of_failure(browser: webdriver.Chrome, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """What the page looked like when a test ended; pytest keeps the folders of the last runs."""
    yield
    browser.save_screenshot(str(tmp_path / f"{request.node.name}.png"))


def _wait(browser: webdriver.Chrome, *, seconds: float = PAGE_SECONDS) -> WebDriverWait:
    return WebDriverWait(browser, seconds, poll_frequency=0.2)


def _start(browser: webdriver.Chrome, served: Served, spec: dict[str, object]) -> str:
    """Fill in the form and press the button; the workflow id."""
    workflow = f"campaign/{spec['name']}"
    prefilled = urlencode({"workflowId": workflow, "taskQueue": "campaigns", "workflowType": "TrainingCampaign"})
    browser.get(served.page(f"workflows/start-workflow?{prefilled}"))
    editor: WebElement = _wait(browser).until(conditions.element_to_be_clickable(EDITOR))
    editor.click()
    editor.send_keys(json.dumps(spec))
    # The editor closes brackets and quotes on its own: what counts is what it holds now.
    assert json.loads(editor.text) == spec
    # Leaving the editor lays the JSON out over several lines, which moves the button: only then press it.
    browser.find_element(By.TAG_NAME, "h1").click()
    _wait(browser).until(lambda _: "\n" in editor.text)
    _wait(browser).until(lambda page: "Task Queue is Active" in page.find_element(By.TAG_NAME, "body").text)
    _wait(browser).until(conditions.element_to_be_clickable(START)).click()
    _wait(browser).until(lambda page: "Workflow started successfully" in page.find_element(By.TAG_NAME, "body").text)
    return workflow


def _until_shown(browser: webdriver.Chrome, served: Served, workflow: str, status: str) -> str:
    """Open the workflow's page and wait until its badge has the status; the page's text."""
    browser.get(served.page(f"workflows/{quote(workflow, safe='')}"))

    def shows(page: webdriver.Chrome) -> str | None:
        heading = page.find_element(By.CSS_SELECTOR, "[data-testid=workflow-id-heading]").text
        badges = [one.text for one in page.find_elements(By.XPATH, f"//span[normalize-space(text())='{status}']")]
        found = workflow in heading and status.upper() in badges  # the style sheet writes it in capitals
        return page.find_element(By.TAG_NAME, "body").text if found else None

    return str(_wait(browser, seconds=CAMPAIGN_SECONDS).until(shows))


async def test_the_form_starts_a_campaign_that_completes(browser: webdriver.Chrome, served: Served) -> None:
    workflow = _start(browser, served, served.tiny("from-the-ui"))
    text = _until_shown(browser, served, workflow, "Completed")
    assert "TrainingCampaign" in text
    campaign = (await Anabasis.connect(address=served.address)).campaign("from-the-ui")
    assert (await campaign.result(timeout_seconds=10)).name == "from-the-ui"
    assert (await campaign.status()).phase is Phase.COMPLETED


async def test_a_bad_spec_fails_at_once_and_the_ui_shows_every_problem(
    browser: webdriver.Chrome, served: Served
) -> None:
    spec: dict[str, object] = {"name": "bad-from-the-ui", "fleet": {"slots": -1}, "rubbish": 1}
    workflow = _start(browser, served, spec)
    text = _until_shown(browser, served, workflow, "Failed")
    assert "fleet.slots" in text
    assert "rubbish: unknown field" in text
