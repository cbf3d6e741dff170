"""Runs the command line as its users do: in a process of its own."""

from __future__ import annotations

import subprocess
import sys

COMMAND = (sys.executable, "-m", "tensorprobe")


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`tensorprobe ARGUMENTS`, with its output as text."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=120)
