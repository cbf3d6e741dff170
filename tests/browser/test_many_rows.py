"""Fifty thousand pairs: what is in the document stays small. How long it takes is for benchmarks/report.py."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tensorprobe.report.page.document import render
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


def test_rows_that_are_used_again_show_what_they_stand_for(open_page: Opener) -> None:
    """The scroll bar is dragged, and let go: every cell is of the row that its line names."""
    page = open_page(make_comparison(layers=200))
    _check_sorted_by_name(page)
    page.get_by_role("grid").focus()
    for top in (100, 60_000, 59_000, 3_000, 0, 150_000):
        page.evaluate(f"document.getElementById('pair_box').scrollTop = {top}")
        expect(page.locator(f"#pair_box tr[data-row='{top // 28 + 2}']")).to_be_attached()
        shown = page.locator("#pair_box tr[data-row]").evaluate_all(
            "lines => lines.map(one => [Number(one.dataset.row), one.children[0].textContent, one.children[3].title,"
            " store.ofRow('reference_name', Number(one.dataset.row)) ?? ''])"
        )
        assert [row for row, *_ in shown] == sorted(row for row, *_ in shown)
        assert [(number, title) for _, number, title, _ in shown] == [(f"{row:,}", name) for row, _, _, name in shown]


def _check_sorted_by_name(page: Page) -> None:
    """In several slices, and as a person counts: linear.9 before linear.10."""
    page.get_by_role("button", name="reference", exact=True).click()
    expect(page.locator("#pair_box [aria-sort=ascending]")).to_contain_text("reference")
    expect(page.locator("#pair_box[aria-busy]")).to_have_count(0)
    names = page.evaluate("Array.from(pairTable.rows, row => store.ofRow('reference_name', row)).filter(Boolean)")
    assert len(names) > 8000
    key = [[int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)] for name in names]
    assert key == sorted(key)
    page.evaluate("choose({ sort: '' })")


def test_a_file_of_fifty_thousand_pairs_is_under_25_megabytes() -> None:
    few, many = (make_comparison(layers=layers) for layers in (50, 150))
    bytes_a_pair = (len(render(many)) - len(render(few))) / (len(many["rows"]["call"]) - len(few["rows"]["call"]))
    assert len(render(few)) + 50_000 * bytes_a_pair < 25e6


def test_a_plot_of_many_calls_draws_the_largest_of_each_stretch_and_every_source(open_page: Opener) -> None:
    page = open_page(make_comparison(layers=400))
    expect(page.locator("#course_state")).to_contain_text("zoom in to see every call")
    drawn = page.evaluate("courseChart.shown.map(one => [one.name, one.x.length])")
    assert max(length for _, length in drawn) <= 402
    assert ["source", 1] in drawn
    calls = "courseChart.shown.flatMap(one => one.names)"
    shown = page.evaluate(f"Math.max(...{calls}.map(call => store.calls.error[call]))")
    assert shown == page.evaluate("Math.max(...store.calls.error)")
