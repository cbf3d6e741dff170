"""SIGTERM for a main thread that is stuck. Python answers a signal between two steps of the main thread's own code; one
that waits in C++ for a collective whose partner is gone never comes there. A thread then does what the handler would.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

GRACE_SECONDS = 2.0
"""How long the main thread has to answer by itself."""
_CLOSE_SECONDS = 20.0


class StuckMainThread:
    """Watches, from a thread, whether SIGTERM is answered."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._is_answered = threading.Event()
        self._descriptors: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def install(self) -> None:
        """Have the system write signals into a pipe, unless somebody else has (asyncio does): then nothing is
        watched."""
        if self._descriptors is not None:
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        self._descriptors = reader, writer
        self._is_answered.clear()
        self._thread = threading.Thread(target=self._watch, args=(reader,), name="tensorprobe-sigterm", daemon=True)
        self._thread.start()

    def remove(self) -> None:
        """The pipe's end ends the thread; in a forked child there is none."""
        descriptors, self._descriptors = self._descriptors, None
        if descriptors is None:
            return
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, descriptors[1]):
            signal.set_wakeup_fd(now)
        os.close(descriptors[1])
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join(1.0)

    def answer(self) -> None:
        """The handler runs: the main thread is not stuck."""
        self._is_answered.set()

    def _watch(self, reader: int) -> None:
        numbers = os.read(reader, 64)
        while numbers and signal.SIGTERM not in numbers:
            numbers = os.read(reader, 64)
        os.close(reader)
        if numbers and not self._is_answered.wait(GRACE_SECONDS):
            closer = threading.Thread(target=self._close, name="tensorprobe-close", daemon=True)
            closer.start()
            closer.join(_CLOSE_SECONDS)  # a device that hangs would be waited for for ever
            end_by_sigterm()


def end_by_sigterm() -> None:
    """Die of SIGTERM as a program without a handler does. Python lets only the main thread take its handler away."""
    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
    os.kill(os.getpid(), signal.SIGTERM)
