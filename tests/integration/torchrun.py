"""Programs of several processes, started as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.script import SOURCE
from tests.length import PATIENCE_SECONDS


def run_torchrun(ranks: int, script: Path, *arguments: str) -> str:
    """Run a program on this many ranks; what it wrote to stderr."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*launcher, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr
