"""The page that a real `tensorprobe serve` shows, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.cli.test_serve import serving
from tests.length import PATIENCE_SECONDS
from tests.serve.recorded import NAME, VALUES, write_run

Opener = Callable[[str, str], Page]

_ROW = "#pair=1"
_ASKING = "Reading the tensors"


@pytest.fixture
def open_served(browser: Browser) -> Iterator[Opener]:
    """Opens an address of the server, and waits until the page is drawn.

    An error in the page, or a request to anybody else, fails the test.
    """
    problems: list[str] = []
    contexts: list[BrowserContext] = []

    def open_served(address: str, fragment: str = "") -> Page:
        own = address.partition("?")[0]
        context = browser.new_context(locale="en-US")
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on(
            "request",
            lambda request: None if request.url.startswith((own, "data:", "blob:")) else problems.append(request.url),
        )
        page.goto(address + fragment)
        page.locator("#views .foot").wait_for()  # the data is unpacked after the page has loaded
        return page

    yield open_served
    for context in contexts:
        context.close()
    assert problems == []


def _shown_charts(page: Page) -> int:
    page.locator("#detail .chart_axis").first.wait_for()
    return page.locator("#detail figure").count()


def test_a_tensor_of_a_run_is_loaded_when_it_is_opened(open_served: Opener, tmp_path: Path) -> None:
    with serving(write_run(tmp_path)) as (_, address):
        page = open_served(address, "")
        page.locator("#course .chart_axis").first.wait_for()
        with page.expect_response("**/api/pair?row=1&token=*") as answer:
            page.evaluate(f"location.hash = {_ROW!r}")
        assert answer.value.status == 200
        assert _shown_charts(page) == 2  # the histogram and the heat map
        assert f"{NAME}.output.0" in page.locator("#detail").inner_text()


def test_a_pair_that_the_page_does_not_hold_is_loaded_when_it_is_opened(open_served: Opener, tmp_path: Path) -> None:
    """Equal pairs are not drawn in advance."""
    reference, candidate = write_run(tmp_path / "good"), write_run(tmp_path / "same")
    with serving(reference, candidate) as (_, address):
        page = open_served(address, "")
        row = page.evaluate(
            "store.data.rows.reference_name_s.findIndex((text) => store.data.strings[text].endsWith('.output.0'))"
        )
        with page.expect_response(f"**/api/pair?row={row}&token=*") as answer:
            page.evaluate(f"location.hash = '#pair={row}'")
        assert answer.value.json()["heat"]["candidate"] == VALUES.tolist()
        assert _shown_charts(page) == 5  # two histograms and three heat maps


def test_a_pair_without_saved_tensors_says_why(open_served: Opener, tmp_path: Path) -> None:
    with serving(write_run(tmp_path)) as (_, address):
        page = open_served(address, "#pair=0")
        notes = page.locator("#detail .note")
        notes.first.wait_for()
        notes.filter(has_text=_ASKING).wait_for(state="detached")
        assert 'which was recorded with task "statistics"' in page.locator("#detail").inner_text()


def test_the_stacks_of_a_call_are_loaded_when_it_is_opened(open_served: Opener, tmp_path: Path) -> None:
    reference, candidate = write_run(tmp_path / "good"), write_run(tmp_path / "same")
    with serving(reference, candidate) as (_, address):
        page = open_served(address, "#call=0")
        page.locator("#detail", has_text="train.py:3 in main: model(x)").wait_for()


def test_without_the_token_there_is_no_page(browser: Browser, tmp_path: Path) -> None:
    with serving(write_run(tmp_path)) as (_, address):
        page = browser.new_page()
        answer = page.goto(address.partition("?")[0])
        assert answer is not None
        assert answer.status == 403
        assert "Open the address that tensorprobe serve printed" in page.locator("body").inner_text()
        page.close()
