"""Names come from a dump, and a dump may come from anyone: they are shown as text."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.page_data import HOSTILE, make_hostile
from tests.browser.test_page import CLICK_A_POINT, SOURCE, go

SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def test_markup_in_every_text_shows_as_text(open_page: Opener) -> None:
    page = open_page(make_hostile(), "#call=8")
    expect(page.locator(".headline")).to_contain_text(SHOWN)
    expect(page.locator("#bar_title")).to_contain_text(SHOWN)
    expect(page.locator(".source_lines .is_it").first).to_contain_text(SHOWN)
    expect(page.locator("#detail")).to_contain_text(SHOWN)
    expect(page.locator("#pair_box tbody tr").first).to_contain_text(SHOWN)
    page.keyboard.press("Escape")
    go(page, "#view=course")
    page.mouse.move(*page.evaluate(CLICK_A_POINT, SOURCE))
    expect(page.locator("#course .chart_tip")).to_contain_text("<script>")
    page.locator(".tree_line").last.click()
    expect(page.locator("#active_filters")).to_contain_text("<script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, main script").count() == 0


def test_a_text_that_a_spreadsheet_would_compute_is_copied_as_text(open_page: Opener) -> None:
    data = make_hostile()
    data["strings"] = [f"=1+1,{text}" if text.startswith("Functional") else text for text in data["strings"]]
    page = open_page(data)
    line = page.evaluate("pairTable.toCsv().split('\\r\\n')[1]")
    assert "\"'=1+1,Functional.linear.0.forward.input.0" in line
