"""One Chromium for all tests of a session, without a network; a page fails its test by an error or a request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tensorprobe.report.page.document import render
from tests.browser.page_data import make_comparison
from tests.length import PATIENCE_SECONDS

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

Opener = Callable[..., Page]

expect.set_options(timeout=1000 * PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The lane sees to it that there is one; a test that is run by itself without one fails."""
    path = shutil.which("chromium")
    assert path, "There is no `chromium`. On Debian: apt-get install chromium; `scripts/test browser` does it."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison as a file, made once."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(render(make_comparison()))
    return path


class Watched:
    """What went wrong in a page: an error, a word on the console, a request."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def open(self, browser: Browser, address: str, **options: Any) -> Page:
        """A page in a context of its own, without a network; it is ready when its plot is."""
        permissions = ["clipboard-read", "clipboard-write"]
        context = browser.new_context(**{"offline": True, "locale": "en-US", "permissions": permissions, **options})
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("request", lambda request: self._note_request(request.url))
        page.goto(address)
        page.locator("#course .chart_axis").first.wait_for()
        return page

    def _note_request(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"request: {url}")


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Opens a file, or data as one, at an address."""
    watched, pages = Watched(), []

    def open_page(source: Path | dict[str, Any], address: str = "", **options: Any) -> Page:
        path = source if isinstance(source, Path) else tmp_path / "report.html"
        if not isinstance(source, Path):
            path.write_bytes(render(source))
        pages.append(watched.open(browser, f"{path.as_uri()}{address}", **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()
    assert watched.problems == []


@pytest.fixture(scope="session")
def shared_page(browser: Browser, page_file: Path) -> Iterator[tuple[Page, Watched]]:
    watched = Watched()
    yield watched.open(browser, page_file.as_uri()), watched


@pytest.fixture
def page(shared_page: tuple[Page, Watched]) -> Iterator[Page]:
    """The small comparison, opened once and as if it was opened anew: nothing is chosen."""
    page, watched = shared_page
    page.emulate_media(media="screen")  # on paper there is nothing to click
    page.bring_to_front()  # others were opened since, and only the page in front may use the clipboard
    page.evaluate("location.hash = ''; courseRange = null; drawPage(); scrollTo(0, 0)")
    page.locator("#course .chart_axis").first.wait_for()
    expect(page.locator("#filter_count")).to_have_text("170 of 170 rows")
    yield page
    assert watched.problems == []
