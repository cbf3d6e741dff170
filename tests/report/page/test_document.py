"""The file of a report, without a browser: what is in it, how often, and what it may do."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.row import Row
from tensorprobe.errors import UsageError
from tensorprobe.report.page import document
from tensorprobe.report.page.document import render

ASSETS = sorted(path for path in document._ASSET.iterdir() if path.is_file())
HOSTILE = "</script><script>alert(1)</script>\"'<!--"
DATA = {
    "version": 1,
    "kind": "comparison",
    "title": f"source: {HOSTILE}",
    "verdict": {"headline": HOSTILE},
    "strings": [HOSTILE, "\ud800 half a character"],
    "calls": {"error": [0.1234567890123, None], "place": [0, 0]},
    "rows": {"call": [0], "status_s": [0]},
}


class Elements(HTMLParser):
    """The elements of a file with their attributes, and what the scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.found[-1] if self.found else ("", {})
        if tag == "script" and data.strip():
            self.scripts.append((attributes, data))
        if tag == "title":
            self.title += data

    def policy(self) -> str:
        return next(
            str(attributes["content"])
            for tag, attributes in self.found
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        )

    def holding(self, name: str) -> list[str]:
        return [text for attributes, text in self.scripts if attributes.get("id") == name]


def unpack(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


@pytest.fixture(scope="module")
def content() -> bytes:
    return render(DATA)


@pytest.fixture(scope="module")
def elements(content: bytes) -> Elements:
    return Elements(content.decode("utf-8"))


def test_the_same_data_make_the_same_file(content: bytes) -> None:
    assert render(DATA) == content


def test_the_data_are_in_the_file_once_and_come_back(content: bytes, elements: Elements) -> None:
    (packed,) = elements.holding("data")
    found = json.loads(unpack(packed))
    assert {**found, "calls": None} == {**DATA, "calls": None}
    assert found["calls"] == {"error": [0.1234568, None], "place": [0]}, "seven digits; what is constant, once"
    assert content.count(b"alert(1)") == 1, "the title, escaped"


def test_numbers_that_json_lacks_do_not_break_the_file() -> None:
    data = {**DATA, "calls": {"error": [float("nan"), float("inf")]}}
    (packed,) = Elements(render(data).decode("utf-8")).holding("data")
    assert json.loads(unpack(packed))["calls"]["error"] == ["NaN", "Infinity"]


def test_a_hostile_name_ends_no_element(elements: Elements) -> None:
    assert elements.title == f"source: {HOSTILE}"
    assert not any("alert(1)" in text for _, text in elements.scripts)


def test_no_element_loads_anything(elements: Elements) -> None:
    for tag, attributes in elements.found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "srcset", "action", "data"} & attributes.keys(), (tag, attributes)
        assert str(attributes.get("href", "#")).startswith("#"), (tag, attributes)


def test_the_policy_allows_the_scripts_of_the_file_and_nothing_else(elements: Elements) -> None:
    policy = dict(part.strip().split(" ", 1) for part in elements.policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'none'"
    allowed = policy["script-src"].split()
    runnable = [text for attributes, text in elements.scripts if "type" not in attributes]
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() for text in runnable]
    assert sorted(allowed) == sorted(f"'sha256-{code}'" for code in hashes)


def test_a_page_that_a_server_shows_knows_its_token_and_asks_only_that_server() -> None:
    elements = Elements(render(DATA, {"token": HOSTILE}).decode("utf-8"))
    assert json.loads(elements.holding("service")[0]) == {"token": HOSTILE}
    assert "connect-src 'self'" in elements.policy()


def test_a_file_on_disk_has_no_service(elements: Elements) -> None:
    assert elements.holding("service") == []


def test_without_what_a_page_needs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "jinja2" else find(name, *rest)
    )
    with pytest.raises(UsageError, match=r'report.html needs jinja2: pip install "tensorprobe\[report\]"'):
        render(DATA)


def test_every_file_of_the_page_is_used() -> None:
    used = {*document._STYLES, *document._SCRIPTS, *document._WORDS.values(), "report.html"}
    assert {path.name for path in ASSETS} == used


@pytest.mark.parametrize("path", [path for path in ASSETS if path.suffix == ".js"], ids=lambda path: path.name)
def test_no_script_turns_text_into_markup_or_code(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|</script"
    )
    assert re.findall(forbidden, text) == []


def test_both_languages_have_the_same_words_with_the_same_gaps() -> None:
    english, chinese = (json.loads(document._read(name)) for name in document._WORDS.values())
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        gaps = sorted(re.findall(r"\{\w+\}", text))
        assert gaps == sorted(re.findall(r"\{\w+\}", chinese[key])), key


def test_every_column_and_every_metric_has_a_word_in_both_languages() -> None:
    names = {field.name for kind in (Row, Measurement) for field in dataclasses.fields(kind)}
    for words in document._WORDS.values():
        assert {f"column.{name}" for name in names} <= json.loads(document._read(words)).keys()


def test_every_word_that_a_script_asks_for_is_there() -> None:
    english = json.loads(document._read("word.en.json"))
    scripts = "".join(document._read(name) for name in document._SCRIPTS)
    asked = set(re.findall(r'\bword\("([a-z_]+\.[a-z_]+)"', scripts))
    asked |= set(re.findall(r'data-(?:word|label)="([^"]+)"', document._read("report.html")))
    assert len(asked) > 80
    assert asked <= english.keys()
