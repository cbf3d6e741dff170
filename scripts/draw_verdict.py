"""Draws docs/picture/verdict.svg: what `tensorprobe compare` prints on the two runs of scripts/demo.

Run it again when the text of a verdict changes: .venv/bin/python scripts/draw_verdict.py
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from tensorprobe.compare import compare
from tensorprobe.report.compare_text import print_comparison

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/picture/verdict.svg"
WIDTH_COLUMNS = 108


def record_demo(folder: Path) -> None:
    """The two runs of scripts/demo. Its program is copied beside them, and their paths are made short."""
    program = folder / "train_gpt.py"
    program.write_text((ROOT / "examples/train_gpt.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name, fault in (("good", []), ("bad", ["--fault"])):
        command = [sys.executable, program.name, "--steps", "1", "--task", "tensor", "--dump-path", name, *fault]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        stack = folder / name / "step0/rank/stack.json"
        stack.write_text(stack.read_text(encoding="utf-8").replace(f"{folder}/", ""), encoding="utf-8")


def render_verdict(folder: Path) -> Console:
    """The command and what it prints, in a console that remembers it."""
    console = Console(record=True, width=WIDTH_COLUMNS, file=io.StringIO(), force_terminal=True)
    before = Path.cwd()
    os.chdir(folder)  # the names in the text are those that a user typed
    try:
        comparison = compare("good", "bad")
    finally:
        os.chdir(before)
    console.print("$ tensorprobe compare good bad", highlight=False)
    print_comparison(console, comparison)
    return console


def without_fonts(template: str) -> str:
    """rich's picture asks the network for its font: a picture in a repository must not."""
    begin = template.index("@font-face")
    end = template.index(".{unique_id}-matrix")
    return template[:begin] + template[end:]


def draw_verdict() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        record_demo(folder)
        console = render_verdict(folder)
        drawn = console.export_svg(
            title="tensorprobe",
            theme=MONOKAI,
            code_format=without_fonts(CONSOLE_SVG_FORMAT),
            unique_id="verdict",
        )
        return drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas")


if __name__ == "__main__":
    PICTURE.write_text(draw_verdict(), encoding="utf-8")
    print(f"written: {PICTURE.relative_to(ROOT)}")
