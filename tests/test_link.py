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
        if link.startswith(("http://", "https://")):
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (heading and heading not in headings(target if name else text)):
            found.append(link)
    return found


def headings(page: Path | str) -> set[str]:
    """The anchors that a page has, as GitHub and the site make them of its headings."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*PAGES, *METADATA], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_what_is_there(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = (
        "# Here\n[a](nowhere.md) [b](docs/index.md#x) [c](https://pypi.org/project/tensorprobe/) [d](#below) [e](#here)"
    )
    found = broken_links(ROOT / "README.md", text)
    assert found == ["https://pypi.org/project/tensorprobe/", "nowhere.md", "docs/index.md#x", "#below"]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r": ([\w.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_command_that_installs_it_names_parts_that_the_package_has() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES)
    named = {
        part for parts in re.findall(r'pip install "(?:tensorprobe|\.)\[([\w,]+)\]"', text) for part in parts.split(",")
    }
    declared = METADATA[0].read_text("utf-8").partition("[project.optional-dependencies]")[2].partition("\n\n")[0]
    assert named and named <= set(re.findall(r"^(\w+) =", declared, re.MULTILINE))


def test_who_finds_no_release_on_the_index_is_told_how_to_install_a_clone() -> None:
    for name in ("README.md", "README.zh-CN.md"):
        text = (ROOT / name).read_text("utf-8")
        assert 'pip install "tensorprobe[cli]"' in text and 'pip install ".[cli]"' in text
