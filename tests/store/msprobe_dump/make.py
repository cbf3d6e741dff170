"""Makes the dumps in this folder again, with the real msprobe: scripts/test msprobe makes the environment for it, then

    .venv-msprobe/bin/python tests/store/msprobe_dump/make.py

Process numbers, and the paths of the machine that it ran on, are replaced by neutral ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PROGRAM = FOLDER.parents[1] / "interoperation" / "program.py"
CASES = ("L0-tensor", "mix-md5", "mix-structure", "debug-statistics", "debug-tensor")
DISTRIBUTED_CASE = "L1-statistics"
PROCESS = "proc4711"
JSON_FILES = ("dump.json", "stack.json", "construct.json", "debug.json")


def main() -> None:
    """Record every case aside, and put what comes out in the place of the old."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name).resolve()
        subprocess.run([sys.executable, str(PROGRAM), "msprobe", str(made), *CASES], check=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        subprocess.run([*launcher, str(PROGRAM), "msprobe", str(made), DISTRIBUTED_CASE], check=True)
        for case in (*CASES, DISTRIBUTED_CASE):
            neutralize(made / case, made)
            shutil.rmtree(FOLDER / case, ignore_errors=True)
            shutil.copytree(made / case, FOLDER / case)


def neutralize(dump: Path, made: Path) -> None:
    """Remove what tells of the machine."""
    for folder in list(dump.glob("step*/proc*")):
        folder.rename(folder.with_name(PROCESS))
    paths = [path for path in dump.rglob("*.json") if path.name in JSON_FILES]
    for path in paths:
        content = replace_texts(json.loads(path.read_text()), made)
        path.write_text(json.dumps(content, indent=1))


def replace_texts(tree: Any, made: Path) -> Any:
    """The same JSON, with neutral texts in it."""
    if isinstance(tree, dict):
        return {key: replace_texts(item, made) for key, item in tree.items()}
    if isinstance(tree, list):
        return [replace_texts(item, made) for item in tree]
    return neutral_text(tree, made) if isinstance(tree, str) else tree


def neutral_text(text: str, made: Path) -> str:
    """A frame of a stack, a folder, or something that needs no change."""
    if text.startswith("File "):
        path, rest = text.removeprefix("File ").split(", line ", 1)
        short = path.rpartition("/site-packages/")[2] if "/site-packages/" in path else Path(path).name
        return f"File {short}, line {rest}"
    if text.startswith(f"{made}/"):
        case, step, rank, *rest = Path(text).relative_to(made).parts
        return str(Path(case, step, PROCESS if rank.startswith("proc") else rank, *rest))
    return text


if __name__ == "__main__":
    main()
