"""Each view by itself: its address, what it shows, and that its numbers add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener
from tests.browser.page_data import make_comparison
from tests.browser.run_data import make_run
from tests.browser.test_page import CLICK_A_POINT, SOURCE, SOURCE_ROW, go
from tests.length import wait_until

COMPARISON = ["verdict", "course", "graph", "modules", "table", "coverage"]
RUN = ["verdict", "course", "gradients", "overflow", "lost_digits", "modules", "table", "settings"]


def check_addresses(page: Page, views: list[str]) -> None:
    shown = page.locator("main .view").evaluate_all("views => views.map(one => one.id.replace('view_', ''))")
    assert shown == views, "in reading order"
    for view in reversed(views):
        go(page, f"#view={view}")
        heading = page.locator(f"#view_{view} h2")
        expect(heading).to_be_in_viewport()
        expect(heading).to_be_focused()
        expect(heading.locator("a")).to_have_attribute("href", f"#view={view}")


def test_every_view_of_a_comparison_has_an_address(page: Page) -> None:
    check_addresses(page, COMPARISON)


def test_every_view_of_a_run_has_an_address(open_page: Opener) -> None:
    check_addresses(open_page(make_run()), RUN)


def test_the_address_of_a_pair_is_copied(page: Page) -> None:
    go(page, f"#pair={SOURCE_ROW}")
    page.get_by_role("complementary").get_by_role("button", name="Copy link").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert page.url.endswith(f"report.html#pair={SOURCE_ROW}")


def course(page: Page, what: str) -> Any:
    return page.evaluate(f"courseChart.{what}")


def test_the_errors_of_both_runs_against_their_truth_and_the_source_stand_on_a_log_axis(page: Page) -> None:
    traces = course(page, "shown.map(one => [one.name, one.names, one.y, one.look.symbol])")
    found = {name: (calls, heights, symbol) for name, calls, heights, symbol in traces}
    assert {"reference against its truth", "candidate against its truth", "tolerance"} < found.keys()
    assert {name.partition(",")[0] for name in found} > {"forward", "backward"}
    calls, heights, _ = found["candidate against its truth"]
    errors = page.evaluate("[...store.calls.truth_candidate]")
    assert heights == pytest.approx([math.log10(errors[call]) for call in calls])
    assert (found["source"][0], found["source"][2]) == ([SOURCE], "star")
    ticks = page.locator("#course .chart_tick.is_y").all_text_contents()
    assert len(ticks) > 5 and all(text == "0" or text.startswith("10") for text in ticks)


def test_a_double_click_takes_the_zoom_of_the_plot_back(page: Page) -> None:
    go(page, "#view=course")
    before = course(page, "content.x.range")
    (left, y), (right, _) = (page.evaluate(CLICK_A_POINT, call) for call in (10, 20))
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(right, y, steps=4)
    page.mouse.up()
    wait_until(lambda: course(page, "content.x.range[0]") > 5)
    page.mouse.dblclick((left + right) / 2, y - 10)
    wait_until(lambda: course(page, "content.x.range") == before)


def test_the_plot_is_zoomed_with_the_keyboard_and_with_ctrl_and_the_wheel(page: Page) -> None:
    go(page, "#view=course")
    whole = course(page, "content.x.range")
    page.locator("#course svg[role=img]").press("+")
    low, high = course(page, "content.x.range")
    assert high - low == pytest.approx((whole[1] - whole[0]) / 2)
    page.locator("#course svg[role=img]").press("-")
    assert course(page, "content.x.range") == whole
    page.mouse.move(*page.evaluate(CLICK_A_POINT, SOURCE))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    wait_until(lambda: course(page, "content.x.range") != whole)
    low, high = course(page, "content.x.range")
    assert low < SOURCE < high and high - low < whole[1] - whole[0]


def test_a_series_of_the_plot_is_hidden_by_its_name(page: Page) -> None:
    name = page.get_by_role("button", name="candidate against its truth")
    name.click()
    expect(name).to_have_attribute("aria-pressed", "false")
    assert "candidate against its truth" not in course(page, "shown.map(one => one.name)")
    name.click()
    assert "candidate against its truth" in course(page, "shown.map(one => one.name)")


def test_a_heat_map_says_which_element_a_cell_is_and_marks_nan(open_page: Opener) -> None:
    data = make_comparison()
    heat = data["details"][str(SOURCE_ROW)]["heat"]
    heat.update(start=[100, 40], block=[2, 1])
    heat["difference"][0][0] = "NaN"
    page = open_page(data, f"#pair={SOURCE_ROW}")
    picture = page.locator(".heat_maps figure").nth(2).locator("svg")
    picture.scroll_into_view_if_needed()
    picture.hover(position={"x": 42, "y": 6})
    hint = page.locator(".heat_maps .chart_tip").nth(2)
    expect(hint).to_have_text("[100, 40]NaN")
    expect(page.locator("#detail .distribution")).to_contain_text("NaN or Inf")
    picture.hover(position={"x": 42, "y": 100})
    expect(hint).to_contain_text(", 40]")
    assert int(hint.inner_text().split(",")[0][1:]) % 2 == 0


def test_the_wheel_with_ctrl_zooms_the_graph_and_alone_scrolls_the_page(page: Page) -> None:
    go(page, "#view=graph")
    content = page.locator(".graph > g")
    before = content.get_attribute("transform")
    page.locator(".graph").hover(position={"x": 200, "y": 40})
    top = page.evaluate("scrollY")
    page.mouse.wheel(0, 60)
    wait_until(lambda: page.evaluate("scrollY") > top)
    assert content.get_attribute("transform") == before
    page.locator(".graph").hover(position={"x": 200, "y": 40})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -60)
    page.keyboard.up("Control")
    wait_until(lambda: content.get_attribute("transform") != before)


def test_a_module_has_the_worst_error_of_all_that_is_inside_it(page: Page) -> None:
    numbers = page.locator("[role=treeitem]").evaluate_all(
        "items => items.map(one => [one.dataset.path, one.querySelector('.tree_number').textContent])"
    )
    calls = page.evaluate("Array.from(store.calls.error, (error, call) => [store.ofCall('module', call), error])")
    assert len(numbers) > 5
    for path, shown in numbers:
        inside = [error for module, error in calls if module == path or module.startswith(f"{path}.")]
        assert shown == page.evaluate("number => formatNumber(number)", max(inside)), path
    marked = page.locator(".block", has_text="★").evaluate_all("blocks => blocks.map(one => one.dataset.path)")
    assert set(marked) == {"", "blocks", "blocks.1", "blocks.1.mlp"}


def test_the_shares_of_the_coverage_add_up_and_what_is_missing_is_listed(page: Page) -> None:
    facts = page.locator("#view_coverage .fact")
    expect(facts.nth(0)).to_contain_text("Calls that have a partner100 %108 of 108")
    expect(facts.nth(1)).to_contain_text("Tensors that were compared98.8 %166 of 168")
    coverage = page.locator("#view_coverage")
    expect(coverage).to_contain_text("not compared: the value was not recorded (2)")
    expect(coverage.locator("#unpaired tbody tr").first).to_contain_text("Tensor.contiguous.3.forward")
    expect(coverage.locator(".problems")).to_have_text("step0/rank0: two files are missing")


def test_a_call_shows_the_stacks_of_both_sides(page: Page) -> None:
    go(page, f"#call={SOURCE + 1}")
    stacks = page.locator("#detail details.stack")
    expect(stacks).to_have_count(2)
    stacks.nth(1).locator("summary").click()
    expect(stacks.nth(1).locator("li")).to_have_count(3)
    expect(stacks.nth(1)).to_contain_text("wrapper.py:7 in call: return inner(x)")
    go(page, "#call=0")
    expect(page.locator("#detail")).to_contain_text("Functional.linear.0.forward")
    expect(stacks).to_have_count(0)


def test_the_other_differences_come_the_most_important_first(page: Page) -> None:
    effects = page.evaluate("store.data.others.map(one => one.effect)")
    shown = page.locator(".others tbody tr").evaluate_all("lines => lines.map(one => one.textContent)")
    for line, effect in zip(shown, effects, strict=False):
        assert effect is None or page.evaluate("share => formatShare(share)", effect) in line


def test_what_is_read_in_the_dark_is_printed_on_white(open_page: Opener, page_file: Any) -> None:
    page = open_page(page_file, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    colours = page.evaluate(
        "[document.body, document.querySelector('.view')].map(one => getComputedStyle(one).backgroundColor)"
    )
    assert all(colour in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)") for colour in colours)
    assert page.evaluate("getComputedStyle(document.querySelector('.headline')).color") == "rgb(0, 0, 0)"
