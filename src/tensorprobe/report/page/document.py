"""The report as one HTML file: the data, the words, the styles and the scripts are all inside.

It opens from disk on a machine without a network, so nothing in it may be loaded from anywhere: the browser is told so
by a Content-Security-Policy that names every script by its hash. What a dump contributes is compressed and written in
base64, so no name can end the element it stands in.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprobe.errors import UsageError
from tensorprobe.report.json import make_strict
from tensorprobe.report.page.digit import encode_compact, encode_table

_ASSET = Path(__file__).parent / "asset"
_STYLES = (
    "theme.css",
    "layout.css",
    "verdict.css",
    "view.css",
    "chart.css",
    "module.css",
    "table.css",
    "detail.css",
    "print.css",
)
_SCRIPTS = (
    "word.js",
    "element.js",
    "number.js",
    "order.js",
    "store.js",
    "selection.js",
    "address.js",
    "scale.js",
    "chart.js",
    "verdict.js",
    "course.js",
    "graph.js",
    "module.js",
    "icicle.js",
    "filter.js",
    "column.js",
    "table.js",
    "detail.js",
    "distribution.js",
    "heat.js",
    "coverage.js",
    "run.js",
    "page.js",
)
_WORDS = {"en": "word.en.json", "zh": "word.zh-CN.json"}
_DIGITS = 7
_LEVEL = 2  # of gzip: 4 takes one and a half times as long for 5 % less, 6 three to five times for 10 %


def check_document() -> None:
    """Is there what a page is made of? Asked before the long work."""
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError('report.html needs jinja2: pip install "tensorprobe[report]"')


def render(data: dict[str, Any], service: dict[str, Any] | None = None) -> bytes:
    """The file. `service` is what the page of a server needs, such as its token; without it nothing is asked for."""
    check_document()
    from jinja2 import Environment, FileSystemLoader

    scripts = [_read(name) for name in _SCRIPTS]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    environment = Environment(loader=FileSystemLoader(_ASSET), autoescape=True, keep_trailing_newline=True)
    text = environment.get_template("report.html").render(
        title=str(data.get("title", "")),
        hashes=hashes,
        styles=[_read(name) for name in _STYLES],
        scripts=scripts,
        words={language: json.loads(_read(name)) for language, name in _WORDS.items()},
        data=_pack(_encode(data)),
        service=service,
    )
    return text.encode("utf-8", "replace")  # half a character in a name cannot be written


def _encode(data: dict[str, Any]) -> bytes:
    """Compact JSON. The columns are nearly all of it: their numbers are cut to the digits that are shown."""
    try:
        text = _encode_strict(data)
    except ValueError:  # a number that JSON lacks was left
        text = _encode_strict(make_strict(data))
    return text.encode("ascii")


def _encode_strict(data: Mapping[str, Any]) -> str:
    tables = {key: encode_table(data[key], _DIGITS) for key in ("calls", "rows") if key in data}
    others = {key: encode_compact(value) for key, value in data.items() if key not in tables}
    return "{" + ",".join(f"{encode_compact(key)}:{text}" for key, text in {**others, **tables}.items()) + "}"


def _read(name: str) -> str:
    return (_ASSET / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode("ascii")
