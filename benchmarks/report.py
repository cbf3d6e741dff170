"""A report of 50,000 pairs in Chromium: how large the file is, how soon it is read, how long it ever stands still.

    python benchmarks/report.py                 the table of docs/performance.md
    python benchmarks/report.py --layers 100    about 4,000 pairs

The data are made, not recorded: what counts is how many there are. A pause is the longest time between two frames that
the browser shows while the table scrolls, or after a filter, a sort or a click. On a busy machine frames of an empty
page, which are measured first, are late too, and the processor time of the page's thread says more.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from tests.browser.conftest import FLAGS
from tests.browser.page_data import make_comparison

from tensorprobe.report.page.document import render

LAYERS = 1190
"""49,982 pairs."""

WATCH_FRAMES = """() => {
    window.longest = 0;
    window.isWatched = true;
    let before = performance.now();
    const watch = (now) => {
        window.longest = Math.max(window.longest, performance.now() - before);
        before = performance.now();
        if (window.isWatched) requestAnimationFrame(watch);
    };
    requestAnimationFrame(watch);
}"""
EMPTY = "an empty page: 60 frames of nothing"
OPENED = "open, until the verdict and the table are there"
PLOT = "performance.getEntriesByName('plot')[0].startTime"
SETTLE = "() => new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 200))"
SCROLL = """async (step) => {
    const box = document.getElementById("pair_box");
    for (let frame = 0; frame < 60; frame += 1) {
        box.scrollTop += step;
        await new Promise(requestAnimationFrame);
    }
}"""
IDLE = """async () => {
    for (let frame = 0; frame < 60; frame += 1) await new Promise(requestAnimationFrame);
}"""
SORT = """async (name) => {
    choose({ sort: name });
    while (document.querySelector("#pair_box[aria-busy]")) await new Promise(requestAnimationFrame);
}"""
ACTIONS = {
    "turn the wheel: 60 frames of 100 pixels": f"() => ({SCROLL})(100)",
    "drag the scroll bar: 60 frames of 800 rows": f"() => ({SCROLL})(22400)",
    "filter by status": "() => toggleChosen('status', 'different')",
    "filter by text": "() => choose({ filter: 'gelu' })",
    "filter by module": "() => choose({ filter: '', status: '', module: 'blocks.7' })",
    "no filter": "() => clearFilters()",
    "sort by error, the first time": f"() => ({SORT})('-error')",
    "sort by name, the first time": f"() => ({SORT})('reference_name')",
    "open a pair": "() => choosePair(26)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    data = make_comparison(layers=options.layers)
    began = time.process_time()
    content = render(data)
    seconds = time.process_time() - began
    count = len(data["rows"]["call"])
    print(f"{count:,} pairs, {len(content) / 1e6:.1f} MB, rendered in {seconds:.1f} s of processor time")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_bytes(content)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        rounds = [measure(browser, path) for _ in range(options.repeat)]
        browser.close()
    print("| | time or longest pause, median | least | processor |\n|---|---|---|---|")
    for name in rounds[0]:
        walls, threads = zip(*(one[name] for one in rounds), strict=True)
        print(f"| {name} | {statistics.median(walls):,.0f} ms | {min(walls):,.0f} ms | {min(threads):,.0f} ms |")


def measure(browser: Browser, path: Path) -> dict[str, tuple[float, float]]:
    """The pause and the processor time of opening the file and of each action, in ms."""
    page = browser.new_context(offline=True, locale="en-US", viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(600_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto("about:blank")
    found = {EMPTY: time_action(page, session, lambda: page.evaluate(IDLE))}
    found[OPENED] = time_opening(page, session, path)
    before = processor_ms(session)
    page.locator("#course .chart_axis").first.wait_for()
    page.evaluate(SETTLE)
    found["until the plot is there too"] = (page.evaluate(PLOT), found[OPENED][1] + processor_ms(session) - before)
    for name, script in ACTIONS.items():
        found[name] = time_action(page, session, lambda script=script: page.evaluate(script))
    page.context.close()
    return found


def time_opening(page: Page, session: CDPSession, path: Path) -> tuple[float, float]:
    page.goto(path.as_uri(), wait_until="commit")
    page.locator("#pair_box tbody tr[data-row]").first.wait_for()
    return page.evaluate("performance.getEntriesByName('table')[0].startTime"), processor_ms(session)


def time_action(page: Page, session: CDPSession, act: Callable[[], Any]) -> tuple[float, float]:
    page.evaluate(WATCH_FRAMES)
    page.evaluate(SETTLE)
    page.evaluate("() => { longest = 0 }")
    before = processor_ms(session)
    act()
    page.evaluate(SETTLE)
    pause = page.evaluate("() => { isWatched = false; return longest }")
    return pause, processor_ms(session) - before


def processor_ms(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")


if __name__ == "__main__":
    main()
