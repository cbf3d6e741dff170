"""Work that a signal must not break off: half a record in a file, records taken from the queue and not yet written, a
window that is half installed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Deferral:
    """A re-entrant lock. What a signal handler asks for while its own thread is inside runs when the thread leaves, and
    so does the answer to Ctrl-C."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: Callable[[], None] | None = None
        self._interrupts = HeldInterrupts()

    def __enter__(self) -> None:
        if self._owner != threading.get_ident():
            self._interrupts.hold()  # before the lock is taken: an interrupt in between would never give it back
        try:
            self._lock.acquire()
        except BaseException:  # a second Ctrl-C, while another thread has the lock
            self._interrupts.drop()
            raise
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        waiting: Callable[[], None] | None = None
        is_last = self._depth == 1
        self._depth -= 1
        if is_last:
            self._owner = None
            waiting, self._waiting = self._waiting, None
        self._lock.release()
        if waiting is not None:
            waiting()
        if is_last:
            self._interrupts.release()

    def defer(self, action: Callable[[], None]) -> bool:
        """Run `action` when this thread leaves; False if it is not inside, and the caller may act at once."""
        if self._owner != threading.get_ident():
            return False
        self._waiting = action
        return True


class HeldInterrupts:
    """Ctrl-C in the main thread, while it is held: the program's own handler answers it afterwards. A second one is
    answered at once, for a disk that never comes back."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._arrived: tuple[int, FrameType | None] | None = None

    def hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread is ever interrupted
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._note:  # and not ignored, or left to the system
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Give the handler back, and have it answer what has come."""
        arrived, handler = self._arrived, self._handler
        if self.drop() and arrived is not None:
            handler(*arrived)

    def drop(self) -> bool:
        """Give the handler back; False if nothing was held here."""
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return False
        handler, self._handler, self._arrived = self._handler, None, None
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, handler)
        return True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._arrived is not None:
            self._handler(number, frame)
        self._arrived = (number, frame)
