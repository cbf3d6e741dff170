"""What a reader does with the page of a comparison, in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener
from tests.browser.page_data import SCRIPT, make_agreement, make_comparison
from tests.length import wait_until

SOURCE = 8
"""The number of the call of the source in the small comparison, and of its result:"""
SOURCE_ROW = 26

CLICK_A_POINT = """call => {
    const series = courseChart.shown.find(one => one.names.includes(call) && !one.look.line);
    const [x, y] = series.points[series.indexes.indexOf(series.names.indexOf(call))];
    const frame = courseChart.svg.getBoundingClientRect();
    return [frame.left + x, frame.top + y];
}"""


def go(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = address }", address)
    wait_until(lambda: page.evaluate("addressOf(selection)") == address)


def shown_rows(page: Page) -> list[str]:
    return page.locator("#pair_box tbody tr[data-row]").evaluate_all("lines => lines.map(one => one.dataset.row)")


def test_the_verdict_is_read_with_its_evidence_and_the_lines_of_both_sides(page: Page) -> None:
    verdict = page.get_by_role("region", name="Source of the difference")
    expect(verdict).to_contain_text("The runs first differ at Functional.gelu.1.forward in module blocks.1.mlp")
    expect(verdict.locator(".evidence li")).to_have_count(3)
    expect(verdict.locator(".is_reference .is_it")).to_contain_text('approximate="none"')
    expect(verdict.locator(".is_candidate .is_it")).to_contain_text('approximate="tanh"')
    expect(verdict).to_contain_text("98.3 %")
    expect(verdict.locator(".error_bars")).to_contain_text("4.70e−4")
    expect(verdict.locator(".others tbody tr")).to_have_count(8)
    verdict.get_by_role("button", name="Show all 11").click()
    expect(verdict.locator(".others tbody tr")).to_have_count(11)
    expect(page).to_have_title("source: blocks")


def test_names_and_commands_are_copied(page: Page) -> None:
    page.locator(".command", has_text="a script that repeats the call").get_by_role("button").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "tensorprobe repro /data/candidate gelu.1 -o repro.py"
    page.locator(".side.is_candidate .side_calls button").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == "Functional.gelu.1.forward")


def test_the_script_that_repeats_the_call_is_copied_and_read(page: Page) -> None:
    script = page.locator(".command.is_script")
    script.get_by_role("button", name="Copy the script").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == SCRIPT)
    expect(script.locator("pre")).to_be_hidden()
    script.locator("summary").click()
    expect(script.locator("pre")).to_have_text(SCRIPT)
    expect(script).to_contain_text("reads its tensors from a file beside it")


def test_a_click_on_a_point_of_the_plot_opens_its_call(page: Page) -> None:
    go(page, "#view=course")
    x, y = page.evaluate(CLICK_A_POINT, SOURCE)
    page.mouse.move(x, y)
    expect(page.locator("#course .chart_tip")).to_contain_text("Functional.gelu.1.forward")
    page.mouse.click(x, y)
    detail = page.get_by_role("complementary", name="Detail")
    expect(detail).to_contain_text("Functional.gelu.1.forward")
    assert page.evaluate("location.hash") == f"#view=course&call={SOURCE}"
    page.locator("#course svg[role=img]").press("ArrowRight")
    expect(detail).to_contain_text("Functional.layer_norm.1.forward")
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()


def test_a_stretch_of_the_plot_is_zoomed_by_dragging(page: Page) -> None:
    go(page, "#view=course")
    (left, y), (right, _) = (page.evaluate(CLICK_A_POINT, call) for call in (10, 20))
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(right, y, steps=4)
    page.mouse.up()
    wait_until(lambda: page.evaluate("courseChart.content.x.range[0]") > 5)
    assert page.evaluate("courseChart.content.x.range[1]") < 25
    page.get_by_role("button", name="Show the whole run").click()
    assert page.evaluate("courseChart.content.x.range") == [-0.5, 55.5]


def test_the_table_is_filtered_by_status_role_and_text(page: Page) -> None:
    count = page.locator("#filter_count")
    expect(count).to_have_text("170 of 170 rows")
    page.locator(".chip[data-key=role][data-name=source]").click()
    expect(count).to_have_text("3 of 170 rows")
    page.locator(".chip[data-key=status][data-name=different]").click()
    expect(count).to_have_text("1 of 170 rows")
    assert shown_rows(page) == [str(SOURCE_ROW)]
    expect(page.locator("#announcer")).to_have_text("1 of 170 rows")
    page.get_by_role("button", name="Show everything").click()
    page.get_by_role("searchbox").fill("layer_norm.2")
    expect(count).to_have_text("6 of 170 rows")
    assert page.evaluate("location.hash") == "#filter=layer_norm.2"
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.locator("#pair_box")).to_contain_text("No row passes the filters.")


def test_the_table_is_sorted_and_its_columns_are_chosen(page: Page) -> None:
    header = page.locator("#pair_box thead")
    header.get_by_role("button", name="error", exact=True).click()
    expect(header.locator("[aria-sort=descending]")).to_contain_text("error")
    errors = page.evaluate("Array.from(pairTable.rows, row => store.ofRow('error', row))")
    known = [error for error in errors if error is not None]
    assert known == sorted(known, reverse=True) and errors[len(known) :] == [None, None]
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("relative l2").check()
    expect(header).to_contain_text("relative l2")
    page.get_by_label("cosine").uncheck()
    expect(header).not_to_contain_text("cosine")
    page.get_by_role("button", name="Copy as CSV").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert (
        len(lines) == 171 and lines[0].startswith("row,status,role,reference_name,error") and "relative_l2" in lines[0]
    )


def test_the_table_is_used_with_the_keyboard(page: Page) -> None:
    table = page.get_by_role("grid", name="All pairs")
    table.focus()
    for key in ("End", "Home", "ArrowDown", "ArrowDown", "PageDown", "PageUp", "ArrowUp"):
        table.press(key)
    expect(table).to_have_attribute("aria-activedescendant", "line_1")
    table.press("Enter")
    expect(page.get_by_role("complementary")).to_contain_text("Functional.linear.0.forward.input.1")
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)
    expect(table).to_be_focused()


def test_a_pair_shows_both_sides_its_metrics_a_histogram_and_a_heat_map(page: Page) -> None:
    page.locator(f"#pair_box tr[data-row='{SOURCE_ROW - 2}']").click()
    detail = page.get_by_role("complementary")
    detail.get_by_role("button", name="output.0").click()
    expect(detail.get_by_role("region", name="Statistics of both sides")).to_contain_text("float32")
    expect(detail.locator(".metrics")).to_contain_text("max ulp7,885")
    expect(detail).to_contain_text("paired bysame name")
    expect(detail.locator(".distribution figure")).to_have_count(5)
    expect(detail.locator(".heat_maps .chart_image").first).to_be_visible()
    expect(detail).to_contain_text("[0, :, :] of 4 × 24 × 24")
    detail.get_by_role("button", name="Close").click()
    page.locator(f"#pair_box tr[data-row='{SOURCE_ROW + 1}']").click()
    expect(detail).to_contain_text("tensorprobe serve PATH")


def test_an_address_restores_what_it_was_copied_from(open_page: Opener, page_file: Path) -> None:
    page = open_page(page_file, f"#module=blocks.1&status=different&filter=gelu&sort=-error&pair={SOURCE_ROW}")
    expect(page.get_by_role("complementary")).to_contain_text("Functional.gelu.1.forward.output.0")
    expect(page.locator("#filter_count")).to_have_text("3 of 170 rows")
    expect(page.locator("#active_filters")).to_contain_text("blocks.1")
    expect(page.get_by_role("searchbox")).to_have_value("gelu")
    page.evaluate("location.hash = '#module=blocks.2'")
    expect(page.locator("#filter_count")).to_have_text("42 of 170 rows")
    expect(page.get_by_role("complementary")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("complementary")).to_contain_text("Functional.gelu.1.forward.output.0")
    expect(page.locator("#filter_count")).to_have_text("3 of 170 rows")


def test_a_link_of_the_contents_keeps_what_is_chosen(page: Page) -> None:
    go(page, "#module=blocks.1")
    page.get_by_role("navigation").get_by_role("link", name="Coverage").click()
    assert page.evaluate("location.hash") == "#view=coverage&module=blocks.1"
    expect(page.get_by_role("heading", name="Coverage")).to_be_in_viewport()


def test_a_module_filters_the_whole_page(page: Page) -> None:
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem", name="mlp")).to_have_count(1)
    tree.locator("[data-path='blocks.2'] > .tree_line").click()
    expect(page.locator("#filter_count")).to_have_text("42 of 170 rows")
    expect(page.locator("#course_state")).to_have_text("14 of 56 calls")
    expect(page.locator("#unpaired")).to_contain_text("Tensor.contiguous.3.forward")
    expect(page.locator(".node.is_dimmed")).to_have_count(4)
    page.locator(".block[data-path='blocks.3']").click()
    expect(page.locator("#unpaired")).not_to_contain_text("Tensor.contiguous.3.forward")
    page.locator("#active_filters").get_by_role("button", name="Remove the filter: module").click()
    expect(page.locator("#filter_count")).to_have_text("170 of 170 rows")


def test_the_tree_of_modules_is_used_with_the_keyboard(page: Page) -> None:
    page.locator(".tree_line").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#active_filters")).to_contain_text("blocks.0")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[role=treeitem][data-path='blocks.0']")).to_have_attribute("aria-expanded", "false")


def test_the_region_is_a_graph_of_three_calls_against_one(page: Page) -> None:
    go(page, "#view=graph")
    graph = page.locator(".graph")
    expect(graph.locator(".node.is_source")).to_have_count(4)
    expect(graph.locator(".join")).to_have_count(3)
    before = graph.locator(":scope > g").get_attribute("transform")
    page.locator(".graph_box").get_by_role("button", name="Zoom in").click()
    assert graph.locator(":scope > g").get_attribute("transform") != before
    graph.get_by_role("button", name="Functional.gelu.1.forward").press("Enter")
    expect(page.get_by_role("complementary")).to_contain_text("Functional.gelu.1.forward")
    expect(graph.locator(".node.is_chosen")).to_have_count(4)


def test_the_graph_is_moved_by_dragging(page: Page) -> None:
    go(page, "#view=graph")
    box = page.locator(".graph").bounding_box()
    assert box is not None
    content = page.locator(".graph > g")
    before = content.get_attribute("transform")
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] - 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + box["height"] - 40, steps=4)
    page.mouse.up()
    assert content.get_attribute("transform") != before


def test_who_listens_hears_what_each_picture_shows(page: Page) -> None:
    expect(page.get_by_role("img", name="56 calls")).to_have_count(1)
    pictures = page.locator("[role=img], .graph")
    assert all(pictures.evaluate_all("found => found.map(one => one.getAttribute('aria-label'))"))


def test_steps_and_ranks_are_a_table_that_filters(open_page: Opener) -> None:
    page = open_page(make_comparison(layers=2, places=3), "#view=matrix")
    page.get_by_role("button", name="step 1, rank0: Unequal start").click()
    expect(page.locator("#filter_count")).to_have_text("84 of 254 rows")
    expect(page.locator("#course_state")).to_have_text("28 of 84 calls")


def test_runs_that_agree_have_a_page_without_empty_boxes(open_page: Opener) -> None:
    page = open_page(make_agreement())
    expect(page.get_by_role("region", name="The runs agree")).to_be_visible()
    expect(page.locator("#view_graph, #view_matrix, .sides, .commands, .others, #unpaired")).to_have_count(0)
    assert page.locator("main :is(ul, ol, dl, tbody, figure):empty").count() == 0


def test_chinese_replaces_the_words_of_the_page_and_not_those_of_the_dump(page: Page) -> None:
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.get_by_role("heading", name="全部配对")).to_be_visible()
    expect(page.locator("#view_verdict")).to_contain_text("The runs first differ at Functional.gelu.1.forward")
    expect(page.locator(".lead")).to_have_text("差异的来源：Functional.gelu.1.forward，位于模块 blocks.1.mlp")
    expect(page.locator(".commands")).to_contain_text("显示待查（candidate）的调用")
    expect(page.locator(".statements th").first).to_have_text("调用")
    expect(page.locator("#filter_count")).to_have_text("170 行中的 170 行")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", name="All pairs")).to_be_visible()


def test_the_page_is_dark_and_chinese_where_the_system_is_and_can_be_switched(
    open_page: Opener, page_file: Path
) -> None:
    page = open_page(page_file, color_scheme="dark", locale="zh-CN")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    surface = "getComputedStyle(document.querySelector('.view')).backgroundColor"
    dark = page.evaluate(surface)
    page.get_by_role("button", name="浅色").click()
    assert page.evaluate(surface) == "rgb(255, 255, 255)" != dark
    page.reload()
    page.locator("#course .chart_axis").first.wait_for()
    assert page.evaluate(surface) == "rgb(255, 255, 255)"


def measure_width(page: Page) -> Any:
    return page.evaluate("[document.documentElement.scrollWidth, innerWidth]")


def test_nothing_is_wider_than_the_screen(open_page: Opener, page_file: Path) -> None:
    page = open_page(page_file, f"#pair={SOURCE_ROW}", viewport={"width": 390, "height": 844})
    page.locator("#detail .heat_maps .chart_image").first.wait_for()
    full, visible = measure_width(page)
    assert full <= visible == 390
    for width in (1280, 1920):
        page.set_viewport_size({"width": width, "height": 844})
        full, visible = measure_width(page)
        assert full <= visible == width


def test_paper_gets_the_first_rows_and_nothing_to_click(page: Page) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint')) && undefined")
    page.emulate_media(media="print")
    assert len(shown_rows(page)) == 60
    assert page.locator("#pair_box thead th").count() == 6, "more columns would be too narrow to read"
    inside = (
        "[...document.querySelectorAll('.graph .node')].every(one => one.getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate(inside), "the whole region"
    expect(page.locator("#contents")).to_be_hidden()
    expect(page.locator("#theme_switch")).to_be_hidden()
