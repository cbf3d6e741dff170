"""Finished records wait here until the next flush: then their statistics are fetched from the device once, and their
lines written.

A flush comes after a number of records or a time, so that what a SIGKILL can take is bounded by both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tensorprobe.capture.stack import Stack
from tensorprobe.store.writer import RankWriter

logger = logging.getLogger("tensorprobe")

FLUSH_RECORDS = 256
FLUSH_SECONDS = 0.5


class Sink:
    """The way from finished records to the files of one step of one process."""

    def __init__(self, writer: RankWriter, fetch: Callable[[], None]) -> None:
        self.writer = writer
        self._fetch = fetch
        self._records: list[tuple[str, Any]] = []
        self._debug: list[tuple[str, Any]] = []
        self._parents: list[tuple[str, str | None]] = []
        self._stacks: list[tuple[str, Stack]] = []
        self._lock = threading.RLock()
        self._last_flush = time.monotonic()
        self.failed = 0

    def add_record(self, name: str, fields: Any, parent: str | None, stack: Stack | None) -> None:
        """A call has ended, forward or backward."""
        self._records.append((name, fields))
        self._parents.append((name, parent))
        if stack is not None:
            self._stacks.append((name, stack))
        if len(self._records) >= FLUSH_RECORDS:
            self.flush()

    def add_debug(self, name: str, tree: Any) -> None:
        """A single point was saved."""
        self._debug.append((name, tree))
        if len(self._debug) >= FLUSH_RECORDS:
            self.flush()

    def flush_if_due(self) -> None:
        """For the timer: bring out what has waited long enough."""
        if (self._records or self._debug) and time.monotonic() - self._last_flush >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Fetch what the device still holds, and write all that waits. A failure to write is logged once; the
        program goes on."""
        with self._lock:
            self._last_flush = time.monotonic()
            records, self._records = self._records, []
            debug, self._debug = self._debug, []
            parents, self._parents = self._parents, []
            stacks, self._stacks = self._stacks, []
            self._attempt(self._fetch)
            if records:
                self._attempt(lambda: self._write_calls(records, parents, stacks))
            if debug:
                self._attempt(lambda: self.writer.append_debug(debug))

    def open_dump(self) -> None:
        """A window begins: its files exist even if nothing will be recorded in it."""
        self._attempt(lambda: self._write_calls([], [], []))

    def close(self, run: dict[str, Any], *, is_finished: bool) -> None:
        """Flush, and make the files whole."""
        with self._lock:
            self.flush()
            self._attempt(lambda: self.writer.close(run, is_finished=is_finished))

    def _write_calls(self, records: list[Any], parents: list[Any], stacks: list[tuple[str, Stack]]) -> None:
        self.writer.append_records(records)
        self.writer.append_parents(parents)
        for name, stack in stacks:
            self.writer.add_stack(name, stack.id, stack.frames)
        self.writer.flush_stacks()

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                logger.error(
                    "writing to %s failed (%s); training goes on, further failures are counted",
                    self.writer.folder,
                    error,
                )
                logger.debug("the failure in full", exc_info=True)


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
