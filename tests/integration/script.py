"""Programs of users, run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.length import PATIENCE_SECONDS

SOURCE = Path(__file__).parents[2] / "src"

PREAMBLE = """
import os, signal, sys
import torch
from torch import nn
from tensorprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.randn(3, 4)
"""


def run_script(folder: Path, text: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`; it must end with this exit code."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return run_python(folder, str(path), *arguments, code=code)


def run_python(
    folder: Path, *arguments: str, code: int = 0, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in `folder`; it must end with this exit code."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUTF8": "1"}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == code, ended.stderr
    return ended


def messages(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What the tool said."""
    mark = "[tensorprobe] "
    return [line.removeprefix(mark) for line in ended.stderr.splitlines() if line.startswith(mark)]
