"""A server for all tests of this folder, a bucket and a cache for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import mirror
from tests.remote.server import S3Server, start_server


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    found = start_server()
    yield found
    found.kill()


@pytest.fixture(autouse=True)
def fresh_store() -> None:
    """Each test may have another server: nothing is left of the connection to the last one."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    mirror._mirrors.clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSORPROBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(server: S3Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bucket, which this process and those that it starts can reach."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"runs-{abs(hash(tmp_path)):x}"
    open_s3().mkdir(name)
    return name


def open_s3() -> Any:
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
