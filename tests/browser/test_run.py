"""The page of a single run."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.run_data import make_run


def test_a_run_shows_its_first_nan_and_what_fed_it(open_page: Opener) -> None:
    page = open_page(make_run())
    verdict = page.get_by_role("region", name="NaN or Inf")
    expect(verdict).to_contain_text("NaN first arises in Functional.softmax.2.forward")
    verdict.get_by_role("region", name="What went in").get_by_role("button").click()
    expect(page.get_by_role("complementary")).to_contain_text("Functional.softmax.2.forward.input.0")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Open the call").click()
    expect(page.get_by_role("complementary")).to_contain_text("scores = softmax(scores)")


def test_a_run_shows_the_other_places_with_nan_or_inf(open_page: Opener) -> None:
    page = open_page(make_run())
    expect(page.get_by_role("heading", name="Other places (1)")).to_be_visible()
    page.get_by_role("button", name="Inf comes from outside into Functional.linear.0.forward.").click()
    expect(page.get_by_role("complementary")).to_be_visible()


def test_the_digits_that_are_lost_most_come_first_and_gradients_say_their_step(open_page: Opener) -> None:
    data = make_run()
    data["places"] = ["step0/rank0", "step1/rank0"]
    data["run"]["gradients"] = [{"parameter": "head.weight", "norm": 0.5, "call": 0, "place": 1}]
    page = open_page(data)
    digits = page.locator("#view_lost_digits tbody .tree_number").all_inner_texts()
    assert digits == sorted(digits, key=float, reverse=True) and len(set(digits)) > 1
    expect(page.locator("#view_gradients tbody")).to_contain_text("step1/rank0")


def test_a_run_shows_statistics_gradients_overflow_and_lost_digits(open_page: Opener) -> None:
    page = open_page(make_run())
    page.get_by_label("Statistic").select_option("norm")
    expect(page.locator("#course .chart_title").last).to_have_text("norm")
    names = page.evaluate("courseChart.shown.map(one => one.name)")
    assert names == ["forward", "has NaN or Inf"]
    expect(page.get_by_role("region", name="Gradient norms", exact=True).first).to_contain_text(
        "blocks.0.mlp.up.weight"
    )
    expect(page.locator("#view_overflow")).to_contain_text("91.6 %")
    expect(page.locator("#view_lost_digits tbody tr")).to_have_count(14)
    expect(page.locator("#view_modules")).to_contain_text("NaN or Inf")
    expect(page.locator("#filter_count")).to_have_text("112 of 112 rows")


def test_a_run_without_nan_says_so(open_page: Opener) -> None:
    data = make_run()
    data["run"] = {"nonfinite": None, "gradients": [], "overflow": [], "lost_digits": None, "statements": []}
    page = open_page(data)
    expect(page.get_by_role("region", name="No NaN, no Inf")).to_contain_text("None of the 112 recorded tensors")
    expect(page.locator("#view_overflow")).to_contain_text("No tensor comes close")
    expect(page.locator("#view_gradients, #view_lost_digits")).to_have_count(0)
