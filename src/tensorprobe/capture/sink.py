"""Finished records wait here until the next flush: then their statistics are fetched from the device once, and their
lines written.

A flush comes after a number of records or a time, so that what a SIGKILL can take is bounded by both. Records are added
by any thread while another flushes: they are queues, and nothing is taken from them that is not then written.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tensorprobe.capture.deferral import Deferral
from tensorprobe.capture.failure import Failures
from tensorprobe.capture.stack import Stack
from tensorprobe.store.writer import RankWriter

FLUSH_RECORDS = 256
FLUSH_SECONDS = 0.5

Item = TypeVar("Item")
Append = Callable[[list[tuple[str, Any]]], None]
Finished = tuple[str, Any, "str | None", "Stack | None"]
"""The name of a record, its fields, the module call around it, and where it was called."""


class Sink:
    """The way from finished records to the files of one step of one process."""

    def __init__(self, writer: RankWriter, fetch: Callable[[], None], failures: Failures, work: Deferral) -> None:
        self.writer = writer
        self._fetch = fetch
        self._failures = failures
        self._work = work
        self._records: deque[Finished] = deque()
        self._debug: deque[tuple[str, Any]] = deque()
        self._last_flush = time.monotonic()
        self._is_held = False

    def add_record(self, name: str, fields: Any, parent: str | None, stack: Stack | None) -> None:
        """A call has ended, forward or backward."""
        self._records.append((name, fields, parent, stack))
        if len(self._records) >= FLUSH_RECORDS:
            self.flush()

    def add_debug(self, name: str, tree: Any) -> None:
        """A single point was saved."""
        self._debug.append((name, tree))
        if len(self._debug) >= FLUSH_RECORDS:
            self.flush()

    def flush_if_due(self) -> None:
        """For the timer: bring out what has waited long enough."""
        if (
            not self._is_held
            and (self._records or self._debug)
            and time.monotonic() - self._last_flush >= FLUSH_SECONDS
        ):
            self.flush()

    def hold(self) -> None:
        """Write what waits; then the timer is not to fetch anything, until `release`."""
        with self._work:
            self.flush()
            self._is_held = True

    def release(self) -> None:
        self._is_held = False

    def flush(self) -> None:
        """Fetch what the device still holds, and write all that waits. A failure to write is noted; the program goes
        on."""
        with self._work:
            self._last_flush = time.monotonic()
            records, debug = take_all(self._records), take_all(self._debug)
            try:
                self._write(records, debug)
            except BaseException:  # Ctrl-C: what waits is written when the program ends
                self._records.extendleft(reversed(records))
                self._debug.extendleft(reversed(debug))
                raise

    def open(self, run: dict[str, Any]) -> None:
        """A step begins: what an earlier run left here goes, and the circumstances are on disk before anything else."""
        with self._work:
            self._attempt(str(self.writer.folder), lambda: self.writer.open(run))

    def open_dump(self) -> None:
        """A window begins: its files exist even if nothing will be recorded in it."""
        with self._work:
            self._attempt(str(self.writer.folder), lambda: self._write_calls([]))

    def close(self, run: dict[str, Any], *, is_finished: bool) -> None:
        """Flush, and make the files whole."""
        with self._work:
            self.flush()
            self._attempt(str(self.writer.folder), lambda: self.writer.close(run, is_finished=is_finished))

    def discard(self) -> None:
        """Nothing happened in this step: leave no files."""
        with self._work:
            self._attempt(str(self.writer.folder), self.writer.discard)

    def _write(self, records: list[Finished], debug: list[tuple[str, Any]]) -> None:
        self._attempt("what the device computed", self._fetch)
        if records:
            self._attempt(str(self.writer.folder), lambda: self._write_calls(records), len(records))
        if debug:
            self._attempt(str(self.writer.folder), lambda: self._append(self.writer.append_debug, debug), len(debug))

    def _write_calls(self, records: list[Finished]) -> None:
        writer = self.writer
        self._append(writer.append_records, [(name, fields) for name, fields, _, _ in records])
        writer.append_parents([(name, parent) for name, _, parent, _ in records])
        for name, _, _, stack in records:
            if stack is not None:
                writer.add_stack(name, stack.id, stack.frames)
        writer.flush_stacks()

    def _append(self, append: Append, items: list[tuple[str, Any]]) -> None:
        """Append all at once; where one of them cannot be put into words, one by one, without that one."""
        try:
            append(items)
        except OSError:
            raise
        except Exception:
            for item in items:
                self._append_one(append, item)

    def _append_one(self, append: Append, item: tuple[str, Any]) -> None:
        try:
            append([item])
        except OSError:
            raise
        except Exception as error:
            self._failures.note(f"the record {item[0]}", error)

    def _attempt(self, what: str, write: Callable[[], None], count: int = 1) -> None:
        try:
            write()
        except Exception as error:
            self._failures.note(what, error, count)


class FlushTimer:
    """Flushes what has waited too long, also when the program makes no more calls (a hang, a long step)."""

    def __init__(self, sink_of: Callable[[], Sink | None]) -> None:
        self._sink_of = sink_of
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tensorprobe-flush", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(FLUSH_SECONDS):
            sink = self._sink_of()
            if sink is not None:
                sink.flush_if_due()


def take_all(queue: deque[Item]) -> list[Item]:
    """What is in a queue now; what others add meanwhile stays in it."""
    return [queue.popleft() for _ in range(len(queue))]
