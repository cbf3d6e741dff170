"""Files of a store, listed once and copied when they are asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import mirror
from tensorprobe.store.mirror import in_threads, mirror_of, open_url
from tests.length import PATIENCE_SECONDS

fsspec = pytest.importorskip("fsspec")


def test_a_folder_is_asked_for_once_until_it_is_opened_anew(store: Any) -> None:
    path = open_url("memory://run")
    source = mirror_of(path)
    assert source is not None
    assert list(source.entries(path / "step0")) == ["a.json"]
    store.pipe("/run/step0/b.json", b"second")
    assert list(source.entries(path / "step0")) == ["a.json"]
    open_url("memory://run")
    assert list(source.entries(path / "step0")) == ["a.json", "b.json"]


def test_what_is_not_there_has_no_entries_and_no_copy(store: Any) -> None:
    path = open_url("memory://run")
    source = mirror_of(path)
    assert source is not None
    assert source.entries(path / "step9") == {}
    assert source.entry(path / "none.json") is None
    with pytest.raises(FileNotFoundError, match=r"memory://run/none\.json does not exist"):
        source.copy(path / "none.json")
    with pytest.raises(FileNotFoundError):  # a folder is none
        source.copy(path / "step0")


def test_a_copy_counts_until_its_original_is_written_anew(store: Any) -> None:
    file = open_url("memory://run") / "step0" / "a.json"
    source = mirror_of(file)
    assert source is not None
    assert not source.has_copy(file)
    source.copy(file)
    assert source.has_copy(file)
    assert file.read_bytes() == b"first"
    store.pipe("/run/step0/a.json", b"other")
    open_url("memory://run")
    assert not source.has_copy(file)


def test_a_copy_that_breaks_off_leaves_nothing(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_url("memory://run") / "step0" / "a.json"
    source = mirror_of(file)
    assert source is not None

    def break_off(place: str, target: str) -> None:
        Path(target).write_bytes(b"fir")
        raise ConnectionResetError("gone")

    monkeypatch.setattr(source._filesystem, "get_file", break_off)
    with pytest.raises(mirror.remote.StoreError, match="cannot be reached"):
        source.copy(file)
    assert list(file.parent.iterdir()) == []


def test_a_path_of_this_machine_has_no_mirror(tmp_path: Path) -> None:
    assert mirror_of(tmp_path) is None


def test_many_are_done_at_once_and_come_back_in_their_order() -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def wait(number: int) -> int:
        barrier.wait()
        return number * number

    assert in_threads(wait, range(3)) == [0, 1, 4]
    assert in_threads(lambda number: number, []) == []
