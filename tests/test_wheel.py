"""What a wheel says of itself: the page of a package index has none of the files that README.md links to."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.length import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """METADATA of a wheel that is built from a copy, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "_native.c")
            shutil.copytree(ROOT / name, folder / "copy" / name, ignore=ignored)
        else:
            (folder / "copy").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / "copy")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
    subprocess.run(command, cwd=folder / "copy", check=True, timeout=PATIENCE_SECONDS)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_page_of_an_index_has_no_link_that_leads_nowhere(metadata: Message) -> None:
    text = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert not [target for target in targets if not target.startswith("https://")]
    assert "![" not in text


def test_the_page_of_an_index_keeps_the_words_and_the_code(metadata: Message) -> None:
    text = str(metadata.get_payload(decode=True), "utf-8")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Next: the tutorial, five minutes from a wrong loss to the wrong line." in text
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"```.*?```", text, re.DOTALL) == re.findall(r"```.*?```", readme, re.DOTALL)


def test_a_wheel_says_its_licence_and_what_it_runs_on(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Programming Language :: Python :: 3.10" in (metadata.get_all("Classifier") or [])
    assert metadata["Requires-Python"] == ">=3.10"
