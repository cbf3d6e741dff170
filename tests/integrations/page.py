"""The programs that the pages on training libraries begin with, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.length import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/integrations"
APART = Path(sys.prefix) / "apart"
"""Libraries that change how others behave as soon as they are found: only those programs see them that need them."""
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program_of(page: str) -> str:
    """The first block of code on a page."""
    found = _BLOCK.search((PAGES / f"{page}.md").read_text("utf-8"))
    assert found is not None
    return found[1]


def run_page_here(page: str) -> None:
    """Run the program of a page in this process, which has imported its library already."""
    exec(compile(program_of(page), f"{page}.md", "exec"), {"__name__": "__main__"})


def run_page(page: str, *launcher: str, before: str = "", has_apart: bool = False) -> str:
    """Run the program of a page in a process of its own, in the working directory; what it prints."""
    Path("program.py").write_text(before + program_of(page), "utf-8")
    return run_program(*launcher, "program.py", has_apart=has_apart)


def run_program(*command: str | Path, has_apart: bool = False) -> str:
    """What a Python program prints, with `python` before its command."""
    ended = try_program(*command, has_apart=has_apart)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout + ended.stderr


def try_program(*command: str | Path, has_apart: bool = False) -> subprocess.CompletedProcess[str]:
    """A Python program that may fail."""
    paths = [str(ROOT), *([str(APART)] if has_apart else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def recorded_steps(folder: Path | str = "dump") -> list[str]:
    """The steps of a dump, and the ranks of each: `step0/rank`."""
    return sorted(str(path.parent.relative_to(folder)) for path in Path(folder).glob("step*/*/dump.json"))
