"""A real S3 server on a free port of this machine: moto's, as a process of its own that a test may kill."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field

_SECONDS = 60


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
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5)
            return server
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise TimeoutError("moto's server did not answer")


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
