"""Runs programs as their users do, each in a process of its own, where tensorprobe-compat is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.length import PATIENCE_SECONDS

if importlib.util.find_spec("tensorprobe_compat") is None:
    pytest.skip(
        "needs tensorprobe-compat: pip install --no-deps --target FOLDER compat/, PYTHONPATH=FOLDER",
        allow_module_level=True,
    )

MANUAL = Path(__file__).parent / "manual"
"""The programs that TroubleShooter's and msprobe's manuals print, unchanged."""


def run_program(*arguments: object, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in the working directory, with more folders to import from."""
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "GLOG_v": "3"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def run_manual(name: str, paths: tuple[Path, ...] = ()) -> str:
    """What a program of a manual prints."""
    return succeed(run_program(MANUAL / name, paths=paths))


def succeed(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def printed_in_manual(name: str) -> list[str]:
    """What a program says it prints: in a comment below each print."""
    return re.findall(r"^ *print\(.*\)\n *# (.*)$", (MANUAL / name).read_text(encoding="utf-8"), re.MULTILINE)
