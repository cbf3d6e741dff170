"""What a notebook shows of a comparison: the verdict and what it rests on, as markup in which no name is markup."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tensorprobe.compare.result import Verdict
from tests.report.comparison import HOSTILE_NAMES, call_result, comparison, gelu_fault, hostile, rank_result

pytest.importorskip("jinja2")
TAGS = {"div", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """The tags and the text of a piece of markup."""

    def __init__(self, markup: str | None) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        assert markup is not None
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_verdict_its_evidence_and_the_counts() -> None:
    shown = Tags(gelu_fault()._repr_html_())
    assert "The runs part at Functional.gelu.0.forward in blocks.0." in shown.text
    assert "its inputs agree: input.0 is equal" in shown.text
    assert "step0/rank" in shown.text and "9 of 10" in shown.text
    assert "good (reference) against bad (candidate)" in shown.text


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_no_name_is_markup_and_there_is_no_script(name: str) -> None:
    shown = Tags(hostile(name)._repr_html_())
    assert set(shown.tags) <= TAGS
    assert shown.attributes == {"style"}


def test_many_steps_and_much_evidence_stay_compact() -> None:
    verdict = Verdict("source", "One sentence.", tuple(f"line {number}" for number in range(50)))
    ranks = [rank_result(call_result(), step=step) for step in range(200)]
    shown = Tags(comparison(*ranks, verdict=verdict)._repr_html_())
    assert shown.tags.count("tr") == 1 + 12 + 1
    assert "and 42 more: print(result)" in shown.text
    assert "and 188 more" in shown.text


def test_without_jinja2_the_notebook_shows_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert gelu_fault()._repr_html_() is None


def test_jinja2_is_imported_only_when_a_result_is_shown() -> None:
    code = "import sys, tensorprobe.compare.engine, tensorprobe.compare.notebook; assert 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
