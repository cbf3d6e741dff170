"""A real S3 server on a free port of this machine: moto's, as a process of its own that a test may kill."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field

from tests.length import PATIENCE_SECONDS, wait_until


@dataclass
class S3Server:
    """Its address and its process."""

    port: int
    process: subprocess.Popen[bytes]
    environment: dict[str, str] = field(default_factory=dict)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_server(port: int | None = None) -> S3Server:
    """One that answers."""
    if port is None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = S3Server(port, process, make_environment(port))
    try:
        wait_until(lambda: _answers(port))
    except TimeoutError:
        server.kill()
        raise
    return server


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=PATIENCE_SECONDS)
    except OSError:
        return False
    return True


def make_environment(port: int) -> dict[str, str]:
    """What tells s3fs of it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "PATH": os.environ["PATH"],
    }
