"""An address in a store, and what only looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.model.url import make_absolute, read_path, read_url, show_location


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3://bucket/run/", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),  # pathlib takes a slash away
        ("GS://bucket", "gs://bucket"),
        ("memory://run", "memory://run"),
        ("./run", None),
        ("/data/run", None),
        ("C:/data", None),
        ("C:\\data", None),
        ("file:///data/run", None),
        ("a:b/c", None),
    ],
)
def test_what_is_an_address(given: str | Path, url: str | None) -> None:
    assert read_url(given) == url


def test_a_file_address_is_a_path() -> None:
    assert read_path("file:///data/run") == Path("/data/run")
    assert read_path(Path("file:///data/run")) == Path("/data/run")
    assert show_location("file:///data/run") == "/data/run"


def test_a_folder_that_is_called_so_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:/bucket").mkdir(parents=True)
    assert read_url("s3:/bucket") is None
    assert read_url("s3://bucket") == "s3://bucket"  # that is what is written for a store


def test_an_address_is_absolute() -> None:
    assert show_location(make_absolute(Path("s3://bucket/run"))) == "s3://bucket/run"
    assert make_absolute(Path("run")).is_absolute()
