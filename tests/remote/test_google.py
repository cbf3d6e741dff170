"""Dumps at `gs://` addresses, in a server that speaks the protocol of Google's store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorprobe
from tests.cli.command import run_here
from tests.length import PATIENCE_SECONDS, wait_until
from tests.remote.dump import write_run
from tests.remote.program import record_step

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # read at import; it asks by gRPC, and the server has HTTP
gcsfs = pytest.importorskip("gcsfs")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "gcp_storage_emulator",
        "start",
        "-H",
        "127.0.0.1",
        "--port",
        str(port),
        "-M",
        "-q",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_SECONDS)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def google(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, `runs`."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")
    gcsfs.GCSFileSystem.clear_instance_cache()
    store = gcsfs.GCSFileSystem(token="anon", project="test", skip_instance_cache=True, use_listings_cache=False)
    if not store.exists("runs"):
        store.mkdir("runs")
    return store


def test_two_runs_are_compared_where_they_are(google: Any, tmp_path: Path) -> None:
    for name, scale in (("good", 1.0), ("bad", 1.5)):
        write_run(tmp_path / name, scale=scale)
        google.put(str(tmp_path / name), f"runs/{name}", recursive=True)
    found = tensorprobe.compare("gs://runs/good", "gs://runs/bad")
    assert found.verdict.headline.startswith("The runs first differ at Tensor.mul.0.forward")
    assert found.ranks[0].bases["tensor"] > 0
    assert tensorprobe.compare(tmp_path / "good", "gs://runs/good")


def test_a_step_is_recorded_into_it_and_read_again(google: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record_step("gs://runs/recorded")
    assert "runs/recorded/step0/rank/dump.json" in google.find("runs/recorded")
    done = run_here(capsys, "show", "gs://runs/recorded")
    assert done.returncode == 0, done.stderr
    assert "Functional.linear.0" in done.stdout
