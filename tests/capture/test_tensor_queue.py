"""Tensor files are written by threads, counted in order, through a bounded queue."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tensorprobe.capture.failure import Failures
from tensorprobe.capture.tensor_queue import TensorQueue
from tensorprobe.store.folder import Folder
from tests.length import PATIENCE_SECONDS, wait_until


class Disk:
    """Writes bytes as tensors, when it is told that it may."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.written: list[bytes] = []

    def write(self, copy: bytes, file: BinaryIO) -> None:
        assert self.may_write.wait(PATIENCE_SECONDS)
        if copy == b"bad":
            file.write(b"half of it")
            raise RuntimeError("the framework fails") from OSError(28, "No space left on device")
        file.write(copy)
        self.written.append(copy)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def queue(disk: Disk, tmp_path: Path) -> Iterator[TensorQueue]:
    made = TensorQueue(disk.write, 100_000, Failures())
    made.folder = Folder(tmp_path / "tensors")
    yield made
    disk.may_write.set()
    made.close()


def test_everything_that_was_put_is_on_disk_after_drain(queue: TensorQueue, disk: Disk, tmp_path: Path) -> None:
    for number in range(50):
        queue.put_tensor(f"{number}.pt", b"%d" % number, 10)
    queue.drain()
    assert disk.written == [b"%d" % number for number in range(50)]
    assert len(names(tmp_path / "tensors")) == 50


def test_a_further_name_is_a_link_to_the_same_file(queue: TensorQueue, tmp_path: Path) -> None:
    queue.put_tensor("a.pt", b"content", 7)
    queue.put_link("a.pt", "b.pt")
    queue.put_link("a.pt", "a.pt")
    queue.drain()
    folder = tmp_path / "tensors"
    assert (folder / "a.pt").samefile(folder / "b.pt") and names(folder) == ["a.pt", "b.pt"]


def test_where_links_fail_a_further_name_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(31, "Too many links")

    (tmp_path / "a").write_bytes(b"content")
    monkeypatch.setattr(os, "link", refuse)
    Folder(tmp_path).link("a", "b")
    assert (tmp_path / "b").read_bytes() == b"content" and not (tmp_path / "a").samefile(tmp_path / "b")


def test_a_link_replaces_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    Folder(tmp_path).link("a", "b")
    assert (tmp_path / "b").read_bytes() == b"new"


def test_who_puts_waits_while_too_much_is_in_the_queue(queue: TensorQueue, disk: Disk) -> None:
    disk.may_write.clear()
    queue.put_tensor("0.pt", b"0", 60_000)
    putting = threading.Thread(target=queue.put_tensor, args=("1.pt", b"1", 60_000))
    putting.start()
    putting.join(0.2)
    assert putting.is_alive()
    disk.may_write.set()
    putting.join(PATIENCE_SECONDS)
    assert not putting.is_alive()


def test_one_tensor_beyond_the_limit_passes_alone(queue: TensorQueue, disk: Disk) -> None:
    queue.put_tensor("huge.pt", b"huge", 10**9)
    queue.drain()
    assert disk.written == [b"huge"]


def test_links_are_bounded_too(queue: TensorQueue, disk: Disk) -> None:
    disk.may_write.clear()
    queue.put_tensor("a.pt", b"a", 10)
    putting = threading.Thread(target=lambda: [queue.put_link("a.pt", f"{number}.pt") for number in range(1000)])
    putting.start()
    putting.join(0.2)
    assert putting.is_alive() and len(queue._tasks) < 200
    disk.may_write.set()
    putting.join(PATIENCE_SECONDS)
    queue.drain()


def test_a_failure_is_said_once_in_the_words_of_the_system_and_the_rest_is_written(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures()
    queue = TensorQueue(disk.write, 1000, failures)
    queue.folder = Folder(tmp_path)
    for name, content in (("a.pt", b"bad"), ("b.pt", b"bad"), ("c.pt", b"good")):
        queue.put_tensor(name, content, 4)
    queue.close()
    assert names(tmp_path) == ["c.pt"]  # no half file, and none that waits to be whole
    assert failures.count == 2 and len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.ERROR
    assert "a tensor file could not be written (OSError: [Errno 28] No space left on device)" in caplog.text


def test_what_follows_goes_to_the_folder_that_is_set_then(queue: TensorQueue, disk: Disk, tmp_path: Path) -> None:
    disk.may_write.clear()
    queue.put_tensor("a.pt", b"first", 5)
    queue.folder = Folder(tmp_path / "next")
    queue.put_tensor("a.pt", b"second", 6)
    disk.may_write.set()
    queue.drain()
    assert (tmp_path / "tensors" / "a.pt").read_bytes() == b"first"
    assert (tmp_path / "next" / "a.pt").read_bytes() == b"second"


def test_close_ends_the_thread(queue: TensorQueue) -> None:
    queue.put_tensor("a.pt", b"a", 1)
    (thread,) = queue._threads
    queue.close()
    assert thread is not None and not thread.is_alive()


def test_abandon_forgets_what_waits(queue: TensorQueue, disk: Disk) -> None:
    disk.may_write.clear()
    queue.put_tensor("a.pt", b"a", 1)
    queue.put_tensor("b.pt", b"b", 1)
    queue.abandon()
    queue.drain()
    disk.may_write.set()


def test_files_and_folders_are_for_their_owner_only(queue: TensorQueue, tmp_path: Path) -> None:
    queue.put_tensor("a.pt", b"a", 1)
    queue.drain()
    folder = tmp_path / "tensors"
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "a.pt").stat().st_mode & 0o777 == 0o600


def test_files_are_counted_in_the_order_in_which_they_were_put(queue: TensorQueue, disk: Disk) -> None:
    disk.may_write.clear()
    queue.put_tensor("a.pt", b"a", 1)
    queue.put_link("a.pt", "b.pt")
    queue.put_tensor("c.pt", b"bad", 1)
    assert (queue.put_count, queue.done_count) == (3, 0)
    disk.may_write.set()
    queue.drain()
    assert queue.done_count == 3  # one of them failed: nobody waits for it


def test_where_no_thread_can_be_started_nobody_waits_for_it(
    queue: TensorQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        queue.put_tensor("a.pt", b"a", 1)
        queue.drain()
    queue.put_tensor("b.pt", b"b", 1)
    queue.drain()
    assert names(tmp_path / "tensors") == ["b.pt"] and queue._failures.count == 1


def test_further_names_of_a_value_that_could_not_be_written_are_counted_and_not_said_again(
    queue: TensorQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put_tensor("a.pt", b"bad", 4)
    queue.put_link("a.pt", "b.pt")
    queue.drain()
    assert queue._failures.count == 2 and len(caplog.records) == 1


def test_where_every_core_computes_files_are_written_at_once_and_without_a_thread(disk: Disk, tmp_path: Path) -> None:
    queue = TensorQueue(disk.write, 100_000, Failures(), writes_at_once=True)
    queue.folder = Folder(tmp_path / "tensors")
    before = threading.active_count()
    queue.write_tensor("first.pt", b"first")
    queue.put_link("first.pt", "second.pt")
    assert names(tmp_path / "tensors") == ["first.pt", "second.pt"]
    assert (tmp_path / "tensors" / "second.pt").read_bytes() == b"first" and threading.active_count() == before


def test_a_link_to_a_file_that_still_waits_comes_after_it(disk: Disk, tmp_path: Path) -> None:
    queue = TensorQueue(disk.write, 100_000, Failures(), writes_at_once=True)
    queue.folder = Folder(tmp_path / "tensors")
    disk.may_write.clear()
    queue.put_tensor("first.pt", b"first", 10)  # of a device: it is copied to the host by the thread
    queue.put_link("first.pt", "second.pt")
    disk.may_write.set()
    queue.close()
    assert (tmp_path / "tensors" / "second.pt").read_bytes() == b"first"


def test_a_failure_to_write_at_once_is_noted_and_leaves_nothing(disk: Disk, tmp_path: Path) -> None:
    failures = Failures()
    queue = TensorQueue(disk.write, 100_000, failures, writes_at_once=True)
    queue.folder = Folder(tmp_path / "tensors")
    queue.write_tensor("bad.pt", b"bad")
    queue.put_link("bad.pt", "second.pt")
    assert failures.count == 2 and names(tmp_path / "tensors") == []


class SlowDisk:
    """Writes several at a time; what begins with `slow` only when it is told that it may."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.written: list[bytes] = []

    def write(self, copy: bytes, file: BinaryIO) -> None:
        assert not copy.startswith(b"slow") or self.may_write.wait(PATIENCE_SECONDS)
        file.write(copy)
        self.written.append(copy)


@pytest.fixture
def slow_disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def wide_queue(slow_disk: SlowDisk, tmp_path: Path) -> Iterator[TensorQueue]:
    made = TensorQueue(slow_disk.write, 100_000, Failures(), count_writers=lambda: 3)
    made.folder = Folder(tmp_path / "tensors")
    yield made
    slow_disk.may_write.set()
    made.close()


def test_with_several_threads_a_slow_file_holds_up_only_its_own_further_names(
    wide_queue: TensorQueue, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    wide_queue.put_tensor("a.pt", b"slow", 4)
    wide_queue.put_link("a.pt", "b.pt")
    wide_queue.put_link("b.pt", "c.pt")
    wide_queue.put_tensor("d.pt", b"fast", 4)
    wide_queue.put_link("d.pt", "e.pt")
    folder = tmp_path / "tensors"
    wait_until(lambda: (folder / "e.pt").exists())
    assert {name for name in names(folder) if not name.startswith(".")} == {"d.pt", "e.pt"}
    assert wide_queue.done_count == 0  # a record that names d.pt comes after those before it
    slow_disk.may_write.set()
    wide_queue.drain()
    assert names(folder) == ["a.pt", "b.pt", "c.pt", "d.pt", "e.pt"] and wide_queue.done_count == 5
    assert (folder / "c.pt").read_bytes() == b"slow"


def test_with_several_threads_the_last_that_was_put_under_a_name_stays(
    wide_queue: TensorQueue, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    wide_queue.put_tensor("a.pt", b"slow first", 10)
    wide_queue.put_tensor("a.pt", b"second", 6)
    wide_queue.put_link("a.pt", "b.pt")
    wide_queue.put_tensor("c.pt", b"third", 5)
    wait_until(lambda: b"third" in slow_disk.written)
    slow_disk.may_write.set()
    wide_queue.drain()
    assert slow_disk.written == [b"third", b"slow first", b"second"]
    assert [(tmp_path / "tensors" / name).read_bytes() for name in ("a.pt", "b.pt")] == [b"second", b"second"]


def test_with_several_threads_all_of_many_files_and_names_are_there(wide_queue: TensorQueue, tmp_path: Path) -> None:
    for number in range(300):
        wide_queue.put_tensor(f"{number}.pt", b"%d" % number, 200)
        wide_queue.put_link(f"{number}.pt", f"{number}.link")
    wide_queue.drain()
    assert wide_queue.done_count == wide_queue.put_count == 600 and wide_queue.waiting_bytes == 0
    found = [(tmp_path / "tensors" / f"{number}.link").read_bytes() for number in range(300)]
    assert found == [b"%d" % number for number in range(300)]


def test_with_several_threads_a_further_name_is_that_of_what_was_there_then(
    wide_queue: TensorQueue, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    wide_queue.put_tensor("b.pt", b"slow", 4)
    wide_queue.put_tensor("a.pt", b"first", 5)
    wide_queue.put_link("a.pt", "b.pt")  # waits for b.pt
    wide_queue.put_tensor("a.pt", b"second", 6)
    wide_queue.put_tensor("c.pt", b"third", 5)
    wait_until(lambda: b"third" in slow_disk.written)
    slow_disk.may_write.set()
    wide_queue.drain()
    folder = tmp_path / "tensors"
    assert [(folder / name).read_bytes() for name in ("a.pt", "b.pt")] == [b"second", b"first"]


def test_ctrl_c_while_a_thread_is_started_leaves_a_queue_that_works(
    queue: TensorQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupt)
        queue.put_tensor("a.pt", b"a", 1)
    queue.put_tensor("b.pt", b"b", 1)
    queue.drain()
    assert names(tmp_path / "tensors") == ["b.pt"]
