"""Finished records wait here until the next flush: then their statistics are fetched from the device once, and their
lines written.

A flush comes after a number of records or a time, so that what a SIGKILL can take is bounded by both. A record that
names tensor files is held back until they are on disk: what a killed run leaves names no file that is not there.
Records are added by any thread while another flushes: they are queues, and nothing is taken from them that is not then
written.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from tensorprobe.capture.collector import collector
from tensorprobe.capture.deferral import Deferral
from tensorprobe.capture.failure import Failures
from tensorprobe.capture.stack import Stack
from tensorprobe.store.writer import RankWriter

FLUSH_RECORDS = 256
FLUSH_SECONDS = 0.5
MOST_WAITING = 16 * FLUSH_RECORDS

Append = Callable[[list[tuple[str, Any]]], None]


class Files(Protocol):
    """The tensor files, as far as records wait for them."""

    @property
    def put_count(self) -> int:
        """How many were asked for so far."""

    @property
    def done_count(self) -> int:
        """How many of them, from the first on, nobody needs to wait for any more."""


class Finished(NamedTuple):
    """A record that is ready to be written once `file_count` tensor files are done."""

    file_count: int
    name: str
    fields: Any
    parent: str | None = None
    stack: Stack | None = None


class Waiting:
    """Records in the order in which they were added: first those that came since the last flush, then those that are
    held back for their files. What is written leaves only afterwards: an exception in between loses nothing."""

    def __init__(self) -> None:
        self.new: deque[Finished] = deque()
        self._held: deque[Finished] = deque()

    def __len__(self) -> int:
        return len(self.new) + len(self._held)

    @property
    def is_full(self) -> bool:
        return len(self.new) >= FLUSH_RECORDS

    def add(self, record: Finished) -> None:
        self.new.append(record)

    def hold_back(self) -> None:
        """What is in the queue now is fetched next; what others add meanwhile has to wait for the flush after."""
        for _ in range(len(self.new)):
            self._held.append(self.new[0])
            self.new.popleft()

    def ready(self, done_count: int | None) -> list[Finished]:
        """Those whose files are on disk; None for all."""
        found = []
        for record in self._held:
            if done_count is not None and record.file_count > done_count:
                break
            found.append(record)
        return found

    def remove(self, count: int) -> None:
        """The first of those that are held are written."""
        for _ in range(count):
            self._held.popleft()


class Sink:
    """The way from finished records to the files of one step of one process."""

    def __init__(
        self, writer: RankWriter, fetch: Callable[[], None], files: Files, failures: Failures, work: Deferral
    ) -> None:
        self.writer = writer
        self._fetch = fetch
        self._files = files
        self._failures = failures
        self._work = work
        self._records = Waiting()
        self._debug = Waiting()
        self._last_flush = time.monotonic()
        self._is_held = False
        self.observers: list[Callable[[list[Finished]], None]] = []
        """Told of records whose statistics are fetched, before they are written."""
        self.flush_later: Callable[[], bool] = lambda: False
        """Has somebody else flush soon, where the device would be waited for; False if nobody will."""
        self.lost_count = 0
        """How many records could not be written."""

    def add_record(self, name: str, fields: Any, parent: str | None, stack: Stack | None) -> None:
        """A call has ended, forward or backward."""
        waiting = self._records.new
        waiting.append(Finished(self._files.put_count, name, fields, parent, stack))
        count = len(waiting)
        if count >= FLUSH_RECORDS:
            self._flush_many(count)

    def _flush_many(self, count: int) -> None:
        """So many records wait."""
        is_for_others = count < MOST_WAITING and not self._is_held
        if is_for_others and (count % FLUSH_RECORDS or self.flush_later()):
            return
        self.flush()

    def add_debug(self, name: str, tree: Any) -> None:
        """A single point was saved."""
        self._debug.add(Finished(self._files.put_count, name, tree))
        if self._debug.is_full:
            self.flush()

    def flush_if_due(self) -> None:
        """For the timer: bring out what has waited long enough."""
        if (
            not self._is_held
            and (self._records or self._debug)
            and time.monotonic() - self._last_flush >= FLUSH_SECONDS
        ):
            self.flush()

    def flush_unless_held(self) -> None:
        """For the timer, where it was asked to."""
        if not self._is_held:
            self.flush()

    def hold(self) -> None:
        """Write what waits; then the timer is not to fetch anything, until `release`."""
        with self._work:
            self.flush()
            self._is_held = True

    def release(self) -> None:
        self._is_held = False

    def flush(self) -> None:
        """Fetch what the device still holds, and write all that waits and whose files are on disk. A failure to write
        is noted; the program goes on."""
        self._flush(is_last=False)

    def open(self, run: dict[str, Any]) -> None:
        """A step begins: what an earlier run left here goes, and the circumstances are on disk before anything else."""
        with self._work:
            self._attempt(lambda: self.writer.open(run))

    def open_dump(self) -> None:
        """A window begins: its files exist even if nothing will be recorded in it."""
        with self._work:
            self._write_calls([])

    def close(self, run: dict[str, Any], *, is_finished: bool) -> None:
        """Write all that waits, and make the files whole."""
        with self._work:
            self._flush(is_last=True)
            self._attempt(lambda: self.writer.close(run, is_finished=is_finished))

    def discard(self) -> None:
        """Nothing happened in this step: leave no files."""
        with self._work:
            self._attempt(self.writer.discard)

    def _flush(self, *, is_last: bool) -> None:
        """The last flush waits for nobody: whoever closes the sink has waited for the files."""
        with self._work:
            self._last_flush = time.monotonic()
            done_count = None if is_last else self._files.done_count
            self._records.hold_back()
            self._debug.hold_back()
            try:
                self._fetch()
            except Exception as error:
                self._failures.note("what the device computed", error)
            records, debug = self._records.ready(done_count), self._debug.ready(done_count)
            if records:
                for observe in self.observers:
                    self._attempt(partial(observe, records))
                self._write_calls(records)
                self._records.remove(len(records))
                collector.look_again()
            if debug:
                saved = [(point.name, point.fields) for point in debug]
                if not self._attempt(lambda: self._append(self.writer.append_debug, saved), len(debug)):
                    self.lost_count += len(debug)
                self._debug.remove(len(debug))

    def _write_calls(self, records: list[Finished]) -> None:
        calls = [(record.name, record.fields) for record in records]
        if self._attempt(lambda: self._append(self.writer.append_records, calls), len(calls) or 1):
            self._attempt(lambda: self.writer.append_parents([(record.name, record.parent) for record in records]))
            self._attempt(lambda: self._write_stacks(records))
        else:
            self.lost_count += len(calls)

    def _write_stacks(self, records: list[Finished]) -> None:
        for record in records:
            if record.stack is not None:
                self.writer.add_stack(record.name, record.stack.id, record.stack.frames)
        self.writer.flush_stacks()

    def _append(self, append: Append, items: list[tuple[str, Any]]) -> None:
        """Append all at once; where one of them cannot be put into words, one by one, without that one."""
        try:
            append(items)
        except OSError:
            raise
        except Exception:
            if not items:
                raise
            for item in items:
                self._append_one(append, item)

    def _append_one(self, append: Append, item: tuple[str, Any]) -> None:
        try:
            append([item])
        except OSError:
            raise
        except Exception as error:
            self._failures.note(f"the record {item[0]}", error)

    def _attempt(self, write: Callable[[], None], count: int = 1) -> bool:
        try:
            write()
        except Exception as error:
            self._failures.note(str(self.writer.folder.path), error, count)
            return False
        return True


class FlushTimer:
    """Flushes what has waited too long, also when the program makes no more calls (a hang, a long step); and what it is
    asked for, while the program goes on."""

    def __init__(self, sink_of: Callable[[], Sink | None], failures: Failures) -> None:
        self._sink_of = sink_of
        self._failures = failures
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tensorprobe-flush", daemon=True)
        self._thread.start()

    def ask(self, action: Callable[[], None]) -> bool:
        """Do this soon; False where nobody does any more."""
        self._asked.put(action)
        return self._thread.is_alive()

    def close(self) -> None:
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                action = self._asked.get(timeout=FLUSH_SECONDS)
            except Empty:
                action = self._flush  # while it waits it holds no sink of a step that is over
            if action is None:
                return
            try:
                action()
            except Exception as error:
                self._failures.note("what has waited", error)

    def _flush(self) -> None:
        sink = self._sink_of()
        if sink is not None:
            sink.flush_if_due()
