"""Programs of users, run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.length import PATIENCE_SECONDS
from tests.warm import run_warm

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


def run_script(
    folder: Path, text: str, *arguments: str, code: int = 0, framework: str = "torch"
) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, in a process that has imported its framework; it must end with this exit code."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    (ended,) = run_warm(framework, folder, [str(path), *arguments], make_environment())
    assert ended.returncode == code, ended.stderr
    return ended


def run_python(
    folder: Path, *arguments: str, code: int = 0, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in `folder`; it must end with this exit code."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=make_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == code, ended.stderr
    return ended


def make_environment() -> dict[str, str]:
    """The variables of a program that is no rank of anything."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**inherited, "PYTHONPATH": str(SOURCE), "PYTHONUTF8": "1"}


def messages(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What the tool said."""
    mark = "[tensorprobe] "
    return [line.removeprefix(mark) for line in ended.stderr.splitlines() if line.startswith(mark)]
