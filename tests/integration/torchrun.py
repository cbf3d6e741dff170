"""Programs of PyTorch in several processes, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integration.msrun import find_port
from tests.integration.script import SOURCE
from tests.warm import run_warm


def run_ranks(ranks: int, script: Path, *arguments: str) -> str:
    """Run a program on this many ranks, without the launcher, in processes that have imported torch; what it wrote to
    stderr. What the launcher itself does is shown in test_run.py."""
    return "".join(one.stderr for one in start_ranks(ranks, script, *arguments))


def start_ranks(ranks: int, script: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """The same, with all that each rank wrote."""
    common = {
        **_make_environment(),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_port()),
    }
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    ended = run_warm("ranks", Path.cwd(), [str(script), *arguments], *environments)
    assert not any(one.returncode for one in ended), "".join(one.stderr for one in ended)[-3000:]
    return ended


def _make_environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
