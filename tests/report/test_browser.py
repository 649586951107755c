"""The report in a real Chromium: light, dark, narrow, by keyboard and on paper, without one complaint."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request

from tacit.report import render_comparison, render_report
from tests.report.samples import NAME, sample_audit, sample_comparison, without
from tests.report.test_page import EVIL, evil
from tests.serving.browser import chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    content = {
        "report": render_report(sample_audit() | {"compare": sample_comparison()}, run_name=NAME),
        "evil": render_report(evil(sample_audit()) | {"compare": evil(sample_comparison())}, run_name=EVIL),
        "empty": render_report(without("exposure", "membership", "extraction", "disparity"), run_name=NAME),
        "comparison": render_comparison(sample_comparison()),
    }
    for name, html in content.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


def opened(
    browser: Browser,
    file: Path,
    complaints: list[str],
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
) -> Page:
    """Open a page and listen to everything that it should never do."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()

    def dismissed(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def asked(request: Request) -> None:
        if request.url != file.as_uri() and not request.url.startswith("data:"):
            complaints.append(f"asked for {request.url}")

    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", dismissed)
    page.on("request", asked)
    page.add_init_script(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation', "
        "(event) => violations.push(event.violatedDirective))"
    )
    page.goto(file.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "evil", "empty", "comparison"])
def test_no_complaint_and_nothing_sticks_out(browser: Browser, pages: Path, name: str, scheme: Any) -> None:
    for width in (1280, 800, 360):
        complaints: list[str] = []
        page = opened(browser, pages / f"{name}.html", complaints, width=width, scheme=scheme)
        complaints += page.evaluate("window.violations")
        assert complaints == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.context.close()


def test_schemes_differ_and_colours_reach_the_figures(browser: Browser, pages: Path) -> None:
    found = {}
    for scheme in ("light", "dark"):
        page = opened(browser, pages / "report.html", [], scheme="dark" if scheme == "dark" else "light")
        found[scheme] = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.plot text')).fill,"
            " getComputedStyle(document.querySelector('.plot .bar')).fill]"
        )
        page.context.close()
    assert all(light != dark for light, dark in zip(found["light"], found["dark"], strict=True))
    assert "rgb(0, 0, 0)" not in found["light"] + found["dark"]  # what an unstyled figure would have


def test_figures_keep_within_their_boxes(browser: Browser, pages: Path) -> None:
    page = opened(browser, pages / "report.html", [])
    outside = page.evaluate(
        """[...document.querySelectorAll('.plot text')].filter((one) => {
          const box = one.getBoundingClientRect(), paper = one.ownerSVGElement.getBoundingClientRect();
          return box.left < paper.left - 1 || box.right > paper.right + 1 || box.bottom > paper.bottom + 1;
        }).map((one) => one.textContent)"""
    )
    assert outside == []
    page.context.close()


def test_tables_open_by_keyboard(browser: Browser, pages: Path) -> None:
    page = opened(browser, pages / "report.html", [])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#exposure-figure summary")
    page.keyboard.press("Enter")
    assert page.is_visible("#exposure-figure table")
    assert not page.is_visible("#utility-figure table")
    page.context.close()


def test_it_prints_with_its_tables(browser: Browser, pages: Path) -> None:
    page = opened(browser, pages / "report.html", [], scheme="dark")
    assert not page.is_visible("#exposure-figure table")
    page.emulate_media(media="print")
    assert page.is_visible("#exposure-figure table")
    assert not page.is_visible("nav")
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).color") == "rgb(27, 35, 32)"
    page.emulate_media(media="screen")
    printed = page.pdf(format="A4", print_background=True)
    assert printed.startswith(b"%PDF")
    pages_printed = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 4 <= pages_printed <= 30
    streams = re.findall(rb"stream\r?\n(.*?)endstream", printed, re.DOTALL)
    assert sum(len(_inflated(stream)) for stream in streams) > 100_000
    page.context.close()


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""
