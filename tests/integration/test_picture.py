"""The picture of the README shows what `compare` prints today."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def words(picture: str) -> str:
    """Its text without numbers, which another processor rounds in another way."""
    text = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture)))
    return re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", " ".join(text.split()))


def test_the_picture_shows_the_verdict_on_the_demo_and_asks_the_network_for_nothing() -> None:
    drawn = (ROOT / "docs/picture/verdict.svg").read_text(encoding="utf-8")
    assert "url(http" not in drawn and "The runs first differ at" in words(drawn)
    program = runpy.run_path(str(ROOT / "scripts/draw_verdict.py"))
    assert words(drawn) == words(program["draw_verdict"]()), "draw it again: python scripts/draw_verdict.py"
