"""Runs the command line as its users do: in a process of its own; or here, where only what it says matters."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest

from tensorprobe.__main__ import run
from tests.length import PATIENCE_SECONDS

COMMAND = (sys.executable, "-m", "tensorprobe")


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`tensorprobe ARGUMENTS`, with its output as text."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=PATIENCE_SECONDS)


def run_here(capture: pytest.CaptureFixture[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same without a process, which takes half a second to start."""
    command = ["tensorprobe", *map(str, arguments)]
    capture.readouterr()
    with mock.patch.object(sys, "argv", command):
        code = run()
    return subprocess.CompletedProcess(command, code, *capture.readouterr())
