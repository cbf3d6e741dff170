"""Copies from stores have a place each, and a bound together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorprobe.errors import UsageError
from tensorprobe.store import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_place_of_a_copy_tells_where_it_is_from(folder: Path) -> None:
    place = cache.place_of("s3://bucket/run/step0")
    assert place == folder / "read" / "s3" / "bucket" / "run" / "step0"
    assert cache.url_of(place) == "s3://bucket/run/step0"
    assert cache.url_of(folder / "elsewhere") is None
    assert cache.url_of(Path("/data/run")) is None


def test_what_waits_to_be_sent_is_no_copy(folder: Path) -> None:
    waiting = cache.spool_of("s3://bucket/run")
    assert waiting == folder / "upload" / "s3" / "bucket" / "run"
    assert cache.url_of(waiting) is None


def test_no_address_leads_out_of_the_folder() -> None:
    with pytest.raises(UsageError, match="give an address without"):
        cache.place_of("s3://bucket/../../etc/passwd")


def test_the_copies_that_were_not_used_for_the_longest_time_go_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.SIZE_VARIABLE, "0.000001")  # 1,000 bytes
    paths = [cache.place_of(f"s3://bucket/{number}") for number in range(5)]
    paths[0].parent.mkdir(parents=True)
    for number, path in enumerate(paths):
        path.write_bytes(bytes(200))
        os.utime(path, (1000 - number, 0))
    (folder / "upload").mkdir()
    (folder / "upload" / "unsent").write_bytes(bytes(5000))
    cache.Budget().spend(300, {paths[4]})
    assert [path.exists() for path in paths] == [True, False, False, False, True]  # 4 is spared, though the oldest
    assert (folder / "upload" / "unsent").exists()


def test_a_bound_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SIZE_VARIABLE, "much")
    with pytest.raises(UsageError, match="TENSORPROBE_CACHE_GB is 'much'"):
        cache.read_limit_bytes()
