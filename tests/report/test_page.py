from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from anabasis.report import Report, build_report, render_html
from anabasis.report.model import PublishedModel, RejectedContribution
from anabasis.storage.base import ObjectStore
from tests.report.samples import START, incident, manifests, status, write_campaign

VOID = {"meta", "line", "path", "circle", "polyline", "br", "hr", "link", "img", "input"}
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Checker(HTMLParser):
    """Balanced tags, and every attribute that could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.dangerous: list[str] = []
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.dangerous += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name in {"src", "href"}]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if tag == "p" and self.stack[-1] != "p":
            self.problems.append("p closed late")
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(f"unbalanced {tag}")


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.stack == []
    return checker


def test_the_page_is_whole_and_needs_nothing_else(eventful_report: Report) -> None:
    page = render_html(eventful_report)
    checker = checked(page)
    assert checker.dangerous == []
    assert checker.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed"})
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_it_says_what_matters(eventful_report: Report) -> None:
    page = render_html(eventful_report)
    for said in ("completed", "59 / 60", "70.0 %", "rolled back to version 27", "corrupt_contribution", "Sample audit"):
        assert said in page
    assert page.count('<svg class="curve') == 2
    assert "Training loss from" in page


def test_text_of_others_is_escaped_everywhere(store: ObjectStore) -> None:
    hostile = incident(1, at=START, kind=ATTACK, text=ATTACK, decision=ATTACK)
    write_campaign(store, manifests(8, rollback_at=5), journal=[[hostile.model_dump(mode="json")]])
    said = status(detail=ATTACK, waiting_for=ATTACK, failure=ATTACK)
    report = build_report(store, "demo", status=said).model_copy(
        update={
            "campaign": ATTACK,
            "store_url": ATTACK,
            "phase": ATTACK,
            "problems": [ATTACK],
            "rejections": [RejectedContribution(version=1, slot=0, attempt=1, reason="norm", detail=ATTACK)],
            "models": [PublishedModel(model=ATTACK, number=1, campaign_version=8, files=[ATTACK])],
        }
    )
    assert report.setup is not None
    report = report.model_copy(
        update={"setup": report.setup.model_copy(update={"recipe": ATTACK, "data_url": ATTACK, "provider": ATTACK})}
    )
    page = render_html(report)
    checker = checked(page)
    assert checker.dangerous == []
    assert checker.tags.isdisjoint({"script", "img"})
    assert "&lt;script&gt;" in page


def test_unknown_buckets_cannot_name_a_class(store: ObjectStore) -> None:
    entry = {"kind": "ledger", "paid_node_seconds": 10.0, "ledger": {'train" onclick="x': 10.0}, "at": START + 99}
    write_campaign(store, manifests(2), journal=[[entry]])
    page = render_html(build_report(store, "demo"))
    assert checked(page).dangerous == []
    assert 'class="unaccounted"' in page


@pytest.mark.parametrize("count", [None, 0, 1, 2])
def test_short_campaigns_have_a_page(store: ObjectStore, count: int | None) -> None:
    write_campaign(store, manifests(count) if count is not None else [])
    checked(render_html(build_report(store, "demo")))


def test_a_long_campaign_stays_small(long_report: Report) -> None:
    page = render_html(long_report)
    checked(page)
    assert len(page) < 600_000
    assert "and 1,199 earlier incidents more" in page


@pytest.mark.browser
def test_a_phone_shows_it_without_scrolling_sideways(eventful_report: Report, tmp_path: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    page = tmp_path / "report.html"
    page.write_text(render_html(eventful_report), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_page_load_timeout(60)
        metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(page.as_uri())
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        assert driver.execute_script("return getComputedStyle(document.querySelector('svg.wide')).display") == "none"
        assert driver.execute_script("return getComputedStyle(document.querySelector('svg.narrow')).display") == "block"
        assert driver.get_log("browser") == []
    finally:
        driver.quit()
