"""The picture of the README shows what `compare` prints today."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

from tests.integration.script import make_environment
from tests.warm import run_warm

ROOT = Path(__file__).parents[2]


def words(picture: str) -> str:
    """Its text without numbers, which another processor rounds in another way."""
    text = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture)))
    return re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", " ".join(text.split()))


def run(command: list[str], cwd: Path, **_: object) -> None:
    """The script's programs, in a process that has imported torch."""
    (ended,) = run_warm("torch", cwd, command[1:], make_environment())
    assert ended.returncode == 0, ended.stderr


def test_the_picture_shows_the_verdict_on_the_demo_and_asks_the_network_for_nothing() -> None:
    drawn = (ROOT / "docs/picture/verdict.svg").read_text(encoding="utf-8")
    assert "url(http" not in drawn and "The runs first differ at" in words(drawn)
    program = runpy.run_path(str(ROOT / "scripts/draw_verdict.py"))
    program["draw_verdict"].__globals__["subprocess"] = SimpleNamespace(run=run)
    assert words(drawn) == words(program["draw_verdict"]()), "draw it again: python scripts/draw_verdict.py"
