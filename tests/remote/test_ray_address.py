"""`--engine ray://head:port`: a cluster that runs, reached through its client server, by the command as a user types
it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import run_command
from tests.length import PATIENCE_SECONDS, wait_until
from tests.remote.dump import write_run

pytest.importorskip("ray")
_ROOT = Path(__file__).resolve().parents[2]


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head of its own, in a group of processes of its own: it is ended by that, and no other cluster is."""
    port, folder = find_port(), tmp_path_factory.mktemp("head")
    options = ["--head", "--block", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    options += [f"--port={find_port()}", f"--ray-client-server-port={port}"]
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *options]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: head.poll() is not None or answers(port))
        assert head.poll() is None, (folder / "log").read_text()[-3000:]
        yield f"ray://127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(PATIENCE_SECONDS)
        finally:
            if head.poll() is None:
                os.killpg(head.pid, signal.SIGKILL)
                head.wait()


@pytest.mark.long
def test_a_cluster_that_runs_is_reached_by_its_address(address: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good", count=40)
    write_run(tmp_path / "bad", scale=1.5, count=40)
    there = run_command("compare", tmp_path / "good", tmp_path / "bad", "--engine", address)
    here = run_command("compare", tmp_path / "good", tmp_path / "bad")
    assert (there.returncode, there.stderr) == (1, ""), there.stderr
    assert there.stdout == here.stdout
    assert "The runs first differ at Tensor.mul.0.forward" in there.stdout
