"""`scripts/demo` without its long parts: nothing is installed, and a small dump stands for what a training records. The
comparison and its page are real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.length import PATIENCE_SECONDS
from tests.report.dump_files import forward, tensor, write_rank

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = 'cd "$(dirname "${BASH_SOURCE[0]}")/.."\nroot="$PWD"\ninstall() { :; }\n'
TRAINING = """
import shutil, sys
name = "bad" if "--fault" in sys.argv or "mindspore" in sys.argv[1] else "good"
shutil.copytree(name, sys.argv[sys.argv.index("--dump-path") + 1])
"""


def write_command(path: Path, line: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The script in a folder of its own, with a Python that does not train."""
    for folder in ("scripts", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "demo", tmp_path / "scripts" / "demo")
    (tmp_path / "scripts" / "environment").write_text(ENVIRONMENT)
    (tmp_path / "train.py").write_text(TRAINING)
    write_command(tmp_path / ".venv/bin/python", f"{sys.executable} train.py")
    write_command(tmp_path / ".venv/bin/tensorprobe", f"{sys.executable} -m tensorprobe")
    for name, value in (("good", 1.0), ("bad", 2.0)):
        record = forward(tensor(), output=tensor(value), module_path="fc")
        write_rank(tmp_path / name / "step0" / "rank", {"Functional.linear.0.forward": record})
    return tmp_path


def run_demo(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(root / "scripts" / "demo"), *arguments]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env={**os.environ, **path}
    )


@pytest.mark.parametrize("framework", ["pytorch", "both"])
def test_it_ends_by_writing_the_report_and_saying_how_to_open_it(framework: str, copy: Path) -> None:
    found = run_demo(copy, "--framework", framework)
    assert found.returncode == 0, found.stderr
    page = copy / "demo_dump" / "result" / "report.html"
    told = found.stdout[found.stdout.index("And as a page") :]
    assert f"Open it in a browser:\n   {page.as_uri()}\n" in told
    assert "<title>source: demo_dump/" in page.read_text(encoding="utf-8")[:20_000]


def test_a_fault_that_is_not_found_fails_it(copy: Path) -> None:
    shutil.rmtree(copy / "bad")
    shutil.copytree(copy / "good", copy / "bad")
    found = run_demo(copy)
    assert found.returncode == 1
    assert "the fault was not found" in found.stderr
