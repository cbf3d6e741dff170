"""Links in pages and in the metadata of the packages lead to what is there: a file here, or a known address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for folder in (".", "compat", "docs", "docs/integrations") for path in (ROOT / folder).glob("*.md"))
METADATA = [ROOT / "pyproject.toml", ROOT / "compat/pyproject.toml"]
ALLOWED = frozenset({"https://keepachangelog.com/en/1.1.0/", "https://semver.org/"})
"""Addresses that somebody looked at. A package index has neither of the two packages."""
_LINK = re.compile(r"\]\((?P<link>[^)\s]+)")
_ADDRESS = re.compile(r"https?://[^\s)\"'>`,]+")


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links to what does not exist, and addresses that are not among those allowed."""
    found = [link for link in _ADDRESS.findall(text) if link not in ALLOWED]
    for link in _LINK.findall(text) if path.suffix == ".md" else ():
        is_elsewhere = link.startswith(("http://", "https://", "#"))
        if not is_elsewhere and not (path.parent / link.partition("#")[0]).exists():
            found.append(link)
    return found


@pytest.mark.parametrize("path", [*PAGES, *METADATA], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_what_is_there(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](nowhere.md) [b](docs/index.md#x) [c](https://pypi.org/project/tensorprobe/) [d](#below)"
    assert broken_links(ROOT / "README.md", text) == ["https://pypi.org/project/tensorprobe/", "nowhere.md"]


def test_nobody_is_told_to_install_what_no_index_has() -> None:
    commands = [command for path in PAGES for command in re.findall(r"pip install[^`\n#]*", path.read_text("utf-8"))]
    assert commands
    assert not [command for command in commands if re.search(r"\btensorprobe", command)]
