"""Programs of several processes, started as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.msrun import find_port
from tests.integration.script import SOURCE
from tests.length import PATIENCE_SECONDS
from tests.warm import run_warm


def run_torchrun(ranks: int, script: Path, *arguments: str) -> str:
    """Run a program on this many ranks; what it wrote to stderr."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run(
        [*launcher, str(script), *arguments],
        env=_make_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def run_ranks(ranks: int, script: Path, *arguments: str) -> str:
    """The same without the launcher, in processes that have imported torch: what the launcher itself does is shown
    elsewhere."""
    common = {
        **_make_environment(),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_port()),
    }
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    ended = run_warm("ranks", Path.cwd(), [str(script), *arguments], *environments)
    errors = "".join(one.stderr for one in ended)
    assert not any(one.returncode for one in ended), errors[-3000:]
    return errors


def _make_environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
