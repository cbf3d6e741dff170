"""Fifty thousand pairs: what is in the document stays small. How long it takes is for benchmarks/report.py."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.page_data import make_comparison


def test_only_rows_in_sight_are_in_the_document(open_page: Opener) -> None:
    data = make_comparison(layers=1190)
    count = len(data["rows"]["call"])
    assert count > 49_900
    page = open_page(data)
    expect(page.locator("#filter_count")).to_have_text(f"{count:,} of {count:,} rows")
    table = page.get_by_role("grid")
    expect(table).to_have_attribute("aria-rowcount", str(count + 1))
    assert page.locator("#pair_box tr").count() < 100
    table.focus()
    table.press("End")
    expect(page.locator(f"#pair_box tr[data-row='{count - 1}']")).to_be_in_viewport()
    assert page.locator("#pair_box tr").count() < 100
    page.locator(".chip[data-key=role][data-name=source]").click()
    expect(page.locator("#filter_count")).to_have_text(f"3 of {count:,} rows")
    expect(page.locator("#pair_box tr[data-row]")).to_have_count(3)


def test_a_plot_of_many_calls_draws_the_largest_of_each_stretch_and_every_source(open_page: Opener) -> None:
    page = open_page(make_comparison(layers=400))
    expect(page.locator("#course_state")).to_contain_text("zoom in to see every call")
    drawn = page.evaluate("document.getElementById('course')._fullData.map(one => [one.name, one.x.length])")
    assert max(length for _, length in drawn) <= 302
    assert ["source", 1] in drawn
    calls = "document.getElementById('course')._fullData.flatMap(one => one.customdata)"
    shown = page.evaluate(f"Math.max(...{calls}.map(call => store.calls.error[call]))")
    assert shown == page.evaluate("Math.max(...store.calls.error)")
