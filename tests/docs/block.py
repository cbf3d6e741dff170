"""The fenced blocks of the pages, as a reader meets them.

A block that cannot be run says why, in a comment before it that no reader of the page sees:
    <!-- not run: needs two GPUs -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for folder in (".", "docs") for path in (ROOT / folder).glob("*.md") if path.stem != "CHANGELOG")
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    """Of the page, where its text begins."""
    reason: str | None
    """Why it is not run."""


def find_blocks(page: Path) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], content.count("\n", 0, found.start("text")) + 1, found["reason"])
        for found in _BLOCK.finditer(content)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
