"""MindSpore programs of several processes, started as users start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.integration.script import SOURCE
from tests.length import PATIENCE_SECONDS


def run_msrun(ranks: int, script: Path, *arguments: str) -> str:
    """Run a program on this many ranks; what rank 0 wrote."""
    logs = script.parent / "msrun_log"
    launcher = [str(Path(sys.executable).with_name("msrun")), f"--worker_num={ranks}", f"--local_worker_num={ranks}"]
    options = [f"--master_port={find_port()}", "--join=True", f"--log_dir={logs}"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))  # msrun starts `python`
    done = subprocess.run(
        [*launcher, *options, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": path, "OMP_NUM_THREADS": "1"},
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    output = (logs / "worker_0.log").read_text() if logs.exists() else ""
    assert done.returncode == 0, output[-3000:] + done.stderr[-3000:]
    return output


def find_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
