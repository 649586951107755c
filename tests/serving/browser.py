"""Debian's Chromium under playwright: nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright


def chromium_path() -> str:
    """Where Chromium is. It is never optional: a page that nobody has looked at is not tested."""
    for name in ("chromium", "chromium-browser"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise AssertionError(
        "There is no Chromium on PATH, and the pages are tested in one; install Debian's: "
        "apt-get install -y --no-install-recommends chromium"
    )


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    path = chromium_path()
    # Chromium's sandbox refuses to run as root; the only pages it sees here are our own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()
