"""What a wheel says of itself: the page of a package index has none of the files that README.md links to."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.length import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources without what is compiled, so that nothing is left in the tree and little is built."""
    folder = tmp_path_factory.mktemp("copy")
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "_*.c")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def metadata(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Message:
    """METADATA of a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
    subprocess.run(command, cwd=copy, check=True, timeout=PATIENCE_SECONDS)
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


def test_a_source_distribution_has_all_that_it_is_built_from(copy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path]
    subprocess.run(command, cwd=copy, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"src/tensorprobe.pth", "src/tensorprobe/capture/torch/_look_value.h"} <= names
