"""Records reach their files at a flush: after a number of them, after a time, at the end. None is lost on the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tensorprobe.capture import sink as sink_module
from tensorprobe.capture.deferral import Deferral
from tensorprobe.capture.failure import Failures
from tensorprobe.capture.sink import FLUSH_RECORDS, MOST_WAITING, FlushTimer, Sink
from tensorprobe.capture.stack import Stack
from tensorprobe.store.folder import Folder
from tensorprobe.store.writer import RankWriter
from tests.length import PATIENCE_SECONDS, wait_until

HEADER = {"task": "statistics", "level": "mix"}
STACK = Stack(0, ("File a.py, line 1, in f, \n g()",), None, ())


class Written:
    """Tensor files: how many were asked for, and how many of them are on disk."""

    put_count = 0
    done_count = 0


def make(
    folder: Path,
    fetch: Callable[[], None] = lambda: None,
    failures: Failures | None = None,
    files: Written | None = None,
) -> Sink:
    writer = RankWriter(Folder(folder), HEADER, has_construct=True, has_extra=True)
    return Sink(writer, fetch, files or Written(), failures or Failures(), Deferral())


def part_names(folder: Path) -> list[str]:
    """What a reader would find after a SIGKILL."""
    text = (folder / "dump.json.part").read_text() if (folder / "dump.json.part").exists() else "{}"
    return list(json.loads(text + "}}")["data"]) if text != "{}" else []


def whole_names(folder: Path, name: str = "dump.json") -> list[str]:
    return list(json.loads((folder / name).read_text())["data"])


def add(sink: Sink, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        sink.add_record(f"call.{number}", {"number": number}, None, STACK)


def test_records_wait_for_the_flush(tmp_path: Path) -> None:
    fetched: list[int] = []
    sink = make(tmp_path, lambda: fetched.append(1))
    add(sink, FLUSH_RECORDS - 1)
    assert part_names(tmp_path) == [] and fetched == []
    add(sink, 1, FLUSH_RECORDS - 1)
    assert part_names(tmp_path) == [f"call.{number}" for number in range(FLUSH_RECORDS)] and fetched == [1]


def test_single_points_wait_for_the_flush_too(tmp_path: Path) -> None:
    sink = make(tmp_path)
    for number in range(FLUSH_RECORDS):
        sink.add_debug(f"x.{number}.debug", None)
    assert (tmp_path / "debug.json.part").read_text().count("\n") == FLUSH_RECORDS


def test_close_makes_all_files_whole(tmp_path: Path) -> None:
    sink = make(tmp_path)
    add(sink, 3)
    sink.add_debug("x.0.debug", {"type": "int", "value": 1})
    sink.close({"complete": True}, is_finished=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "construct.json",
        "debug.json",
        "dump.json",
        "run.json",
        "stack.json",
    ]
    assert whole_names(tmp_path) == ["call.0", "call.1", "call.2"]
    assert whole_names(tmp_path, "debug.json") == ["x.0.debug"]
    assert json.loads((tmp_path / "stack.json").read_text()) == {"0": [["call.0", "call.1", "call.2"], [*STACK.frames]]}


def test_a_sink_can_go_on_after_it_was_closed(tmp_path: Path) -> None:
    sink = make(tmp_path)
    for number in range(3):
        add(sink, 1, number)
        sink.close({}, is_finished=number == 2)
    assert whole_names(tmp_path) == ["call.0", "call.1", "call.2"]


def test_the_timer_brings_out_what_has_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "FLUSH_SECONDS", 0.02)
    sink = make(tmp_path)
    timer = FlushTimer(lambda: sink, Failures())
    add(sink, 1)
    part = tmp_path / "dump.json.part"
    wait_until(lambda: part.exists() and "call.0" in part.read_text())  # the file may be there before its first line
    timer.close()
    assert part_names(tmp_path) == ["call.0"]


def test_nothing_is_flushed_before_it_is_due(tmp_path: Path) -> None:
    sink = make(tmp_path)
    add(sink, 1)
    sink.flush_if_due()
    assert part_names(tmp_path) == []


def test_records_that_are_added_while_another_thread_flushes_are_not_lost(tmp_path: Path) -> None:
    sink, ended = make(tmp_path), threading.Event()

    def keep_flushing() -> None:
        while not ended.is_set():
            sink.flush()

    flusher = threading.Thread(target=keep_flushing)
    adders = [threading.Thread(target=add, args=(sink, 2000, 2000 * number)) for number in range(3)]
    for thread in (flusher, *adders):
        thread.start()
    for thread in adders:
        thread.join()
    ended.set()
    flusher.join()
    sink.close({}, is_finished=True)
    written = whole_names(tmp_path)
    assert len(written) == len(set(written)) == 6000


def test_a_record_that_cannot_be_encoded_does_not_take_the_others_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures()
    sink = make(tmp_path, failures=failures)
    add(sink, 1)
    sink.add_record("bad", {"value": object()}, None, None)
    add(sink, 1, 1)
    sink.close({}, is_finished=True)
    assert whole_names(tmp_path) == ["call.0", "call.1"]
    assert failures.count == 1 and "the record bad could not be written (TypeError: " in caplog.text


def test_a_failing_fetch_does_not_take_the_records_with_it(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the device is lost")

    failures = Failures()
    sink = make(tmp_path, fail, failures)
    add(sink, 2)
    sink.close({}, is_finished=True)
    assert whole_names(tmp_path) == ["call.0", "call.1"] and failures.count > 0


def test_ctrl_c_in_the_middle_of_a_flush_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = [KeyboardInterrupt()]

    def fetch() -> None:
        if interrupts:
            raise interrupts.pop()

    sink = make(tmp_path, fetch)
    add(sink, 3)
    sink.add_debug("x.0.debug", None)
    with pytest.raises(KeyboardInterrupt):
        sink.flush()
    add(sink, 1, 3)
    sink.close({}, is_finished=True)
    assert whole_names(tmp_path) == [f"call.{number}" for number in range(4)]
    assert whole_names(tmp_path, "debug.json") == ["x.0.debug"]


def test_records_that_cannot_be_written_are_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    failures = Failures()
    sink = make(tmp_path / "file" / "rank", failures=failures)
    add(sink, 2 * FLUSH_RECORDS)
    assert failures.count == 2 * FLUSH_RECORDS and len(caplog.records) == 1


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path).child("step0").child("rank")
    writer = RankWriter(folder, HEADER, has_construct=True, has_extra=True)
    sink = Sink(writer, lambda: None, Written(), Failures(), Deferral())
    sink.open({})
    sink.open_dump()
    sink.discard()
    assert list(tmp_path.iterdir()) == []


def test_discard_leaves_what_is_not_ours(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    sink = make(folder)
    sink.open({})
    (folder / "notes.txt").write_text("mine")
    sink.discard()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_the_work_of_a_flush_does_not_depend_on_how_many_came_before(tmp_path: Path) -> None:
    sizes: list[int] = []
    sink = make(tmp_path)
    for number in range(16_000):
        waiting = len(sink._records)
        assert waiting < FLUSH_RECORDS
        sink.add_record(f"call.{number:05}", {"number": 1}, "parent", STACK)
        if not sink._records:
            sizes.append((tmp_path / "dump.json.part").stat().st_size)
    steps = {after - before for before, after in pairwise(sizes)}
    assert len(sizes) == 16_000 // FLUSH_RECORDS and len(steps) == 1
    assert not sink._debug and not sink.writer._stack._lines


def test_a_record_waits_until_the_tensor_files_that_it_names_are_on_disk(tmp_path: Path) -> None:
    files = Written()
    sink = make(tmp_path, files=files)
    add(sink, 1)
    files.put_count = 2
    add(sink, 1, 1)
    files.put_count = 3
    add(sink, 1, 2)
    sink.add_debug("x.0.debug", None)
    written = []
    for files.done_count in (0, 1, 2, 3):
        sink.flush()
        written.append(len(part_names(tmp_path)))
    assert written == [1, 1, 2, 3] and (tmp_path / "debug.json.part").exists()


def test_what_is_held_back_is_not_looked_through_again_for_each_new_record(tmp_path: Path) -> None:
    files, fetched = Written(), []
    sink = make(tmp_path, lambda: fetched.append(1), files=files)
    files.put_count = 1
    add(sink, 10 * FLUSH_RECORDS)
    assert len(fetched) == 10 and len(sink._records) == 10 * FLUSH_RECORDS
    files.done_count = 1
    sink.flush()
    assert len(part_names(tmp_path)) == 10 * FLUSH_RECORDS


def test_close_writes_what_is_still_held_back(tmp_path: Path) -> None:
    files = Written()
    files.put_count = 1
    sink = make(tmp_path, files=files)
    add(sink, 2)
    sink.close({}, is_finished=True)
    assert whole_names(tmp_path) == ["call.0", "call.1"]


def test_the_timer_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "FLUSH_SECONDS", 0.01)
    sink, failures, tried = make(tmp_path), Failures(), threading.Semaphore(0)

    def fail() -> None:
        tried.release()
        raise RuntimeError("broken")

    monkeypatch.setattr(sink, "flush_if_due", fail)
    timer = FlushTimer(lambda: sink, failures)
    assert tried.acquire(timeout=PATIENCE_SECONDS) and tried.acquire(timeout=PATIENCE_SECONDS)
    timer.close()
    assert failures.count >= 1


def test_another_thread_flushes_many_records_where_a_device_would_be_waited_for(tmp_path: Path) -> None:
    sink = make(tmp_path)
    asked: list[int] = []
    sink.flush_later = lambda: asked.append(1) is None
    add(sink, 2 * FLUSH_RECORDS + 1)
    assert len(asked) == 2 and part_names(tmp_path) == []
    sink.flush_unless_held()
    assert len(part_names(tmp_path)) == 2 * FLUSH_RECORDS + 1


def test_records_do_not_gather_for_ever_where_nobody_flushes_them(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.flush_later = lambda: True
    add(sink, MOST_WAITING)
    assert len(part_names(tmp_path)) == MOST_WAITING


def test_nothing_is_fetched_by_others_while_it_is_held(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.hold()
    add(sink, 3)
    sink.flush_unless_held()
    assert part_names(tmp_path) == []


def test_the_timer_does_what_it_is_asked_for_and_says_when_it_cannot() -> None:
    done = threading.Event()
    timer = FlushTimer(lambda: None, Failures())
    assert timer.ask(lambda: 1 // 0) and timer.ask(done.set)
    assert done.wait(PATIENCE_SECONDS)
    timer.close()
    assert not timer.ask(done.set)
