"""A browser and a server for the tests of the pages.

The browser is Debian's Chromium, driven by Playwright. Without them the tests are skipped.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator

import pytest

from pretrax.explorer.pages import Explorer
from pretrax.explorer.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE = 120_000  # milliseconds that a picture may take on a busy machine, compilation included


def launched():
    """Yields a headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@contextlib.contextmanager
def served(explorer: Explorer) -> Iterator[str]:
    """Serves pages, and yields their address."""
    with Server(explorer.site()) as server:
        server.begin()
        yield server.address
        server.shutdown()


def drawn(page, change=None, *, panel: int = 0) -> None:
    """Waits until a panel is drawn again after a change."""
    shown = page.locator(".panel").nth(panel)
    before = int(shown.get_attribute("data-drawn") or 0) if change else 0
    if change:
        change()
    ends = time.monotonic() + PATIENCE / 1000
    while int(shown.get_attribute("data-drawn") or 0) <= before or is_busy(shown):
        assert time.monotonic() < ends, "the panel is not drawn again"
        page.wait_for_timeout(20)  # the pages allow no script that a test could wait with


def is_busy(panel) -> bool:
    return panel.get_attribute("aria-busy") == "true"


def error_with(page, text: str) -> str:
    """Waits until a page shows an error with a text, and returns the whole message."""
    page.locator("#error", has_text=text).wait_for(timeout=PATIENCE)
    return error_of(page)


def error_of(page) -> str:
    """Returns the message that a page shows; "" if it shows none."""
    place = page.locator("#error")
    return place.inner_text() if place.is_visible() else ""
